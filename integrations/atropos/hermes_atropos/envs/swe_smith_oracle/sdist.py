"""Source distributions: find them in the package index, download them once, verify and unpack them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

from hermes_atropos.cache import make_once
from hermes_atropos.envs.swe_smith_oracle.instance import InstanceUnusable, Sdist

_DEFAULT_INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_WAIT_S = 60.0
_UNPACKED_BYTES = 1 << 30


def find_sdist(name: str, version: str) -> Sdist:
    """Return the source distribution of a version in the package index.

    Raises:
        InstanceUnusable: If there is none, or if the index cannot be reached.
    """
    return Sdist(name, version, _find_file(name, version).sha256)


def fetch_archive(sdist: Sdist, cache: Path) -> Path:
    """Return the cached archive, and download it first if it is missing.

    Raises:
        InstanceUnusable: If it cannot be downloaded, or if its hash differs.
    """
    directory = cache / "sdists"

    def make(path: Path) -> None:
        url = _find_file(sdist.name, sdist.version).url
        content = _download(url)
        actual = hashlib.sha256(content).hexdigest()
        if actual != sdist.sha256:
            raise InstanceUnusable(f"{url} has SHA-256 {actual}, not {sdist.sha256} as in the instance")
        path.write_bytes(content)

    return make_once(directory / f"{sdist.name}-{sdist.version}-{sdist.sha256[:16]}.tar.gz", make)


def unpack(archive: Path, target: Path) -> None:
    """Unpack a source distribution into `target`, without its top-level directory. Nothing in it is executed, and
    nothing is written outside `target`.
    """
    target.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        members = []
        for member in tar.getmembers():
            _, _, below = member.name.partition("/")
            if below and (member.isfile() or member.isdir() or member.issym()):
                member.name = below
                members.append(member)
        if sum(member.size for member in members) > _UNPACKED_BYTES:
            raise InstanceUnusable(f"{archive.name} contains more than {_UNPACKED_BYTES >> 20} MiB")
        tar.extractall(target, members, filter="data")


class _IndexFile(NamedTuple):
    url: str
    sha256: str


def _find_file(name: str, version: str) -> _IndexFile:
    page = f"{_index_url().rstrip('/')}/{re.sub(r'[-_.]+', '-', name).lower()}/"
    listed = json.loads(_download(page, accept=_JSON))
    any_form = re.sub("[-_.]+", "[-_.]+", name)
    wanted = re.compile(rf"{any_form}-{re.escape(version)}\.tar\.gz", re.IGNORECASE)
    for file in listed["files"]:
        if wanted.fullmatch(file["filename"]):
            return _IndexFile(urljoin(page, file["url"]), file["hashes"]["sha256"])
    raise InstanceUnusable(f"{page} lists no source distribution of {name} {version}")


def _index_url() -> str:
    """Return the index that pip uses on this host."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    match = re.search(r"^\S*\.index-url='([^']+)'", listed.stdout, re.MULTILINE)
    return match[1] if match else _DEFAULT_INDEX


def _download(url: str, accept: str = "*/*") -> bytes:
    if not url.startswith(("https://", "http://")):
        raise InstanceUnusable(f"{url} is not the address of a package index")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=_WAIT_S) as answer:
            content: bytes = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise InstanceUnusable(f"{url} cannot be downloaded: {error}") from error
    return content
