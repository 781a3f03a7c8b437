"""Puts a Debian file system with bash, Python 3 and git together from the packages of the machine's own apt sources.

Works as an ordinary user: apt keeps its state in a directory of ours, and the packages are merged as archives, never
unpacked on this machine. Their set-up scripts do not run; what this image needs of them (accounts, links, libraries'
cache, compiled Python) is made here or by FINISH.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = """
    base-files base-passwd bash coreutils dash diffutils findutils git grep gzip hostname libc-bin mawk passwd patch
    procps python3 sed tar util-linux
"""
LEFT_OUT = re.compile(
    r"(usr/share/(doc|man|info|locale|lintian|bug|zoneinfo|i18n|perl5|perl)|usr/lib/[^/]+/(gconv|perl[^/]*)|var/cache)/."
)
MERGED = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")
KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/ubuntu-archive-keyring.gpg")
LINKS = {"usr/bin/awk": "mawk", "bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FINISH = (
    "cp /usr/share/base-passwd/passwd.master /etc/passwd; cp /usr/share/base-passwd/group.master /etc/group; "
    "echo 'tester:x:1000:1000::/home/tester:/bin/bash' >> /etc/passwd; echo 'tester:x:1000:' >> /etc/group; "
    "for kind in auth account session password; do echo $kind required pam_permit.so > /etc/pam.d/common-$kind; done; "
    "mkdir -p /home/tester && chown 1000:1000 /home/tester; ldconfig; "
    "python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.*"
)


class DebianUnavailable(Exception):
    """Raised when the packages cannot be had here; the message says why."""


def write_rootfs(archive: Path, scratch: Path, more: str = "") -> None:
    """Write the file system as a tar archive, using `scratch` for apt's state and the downloaded packages; `more` are
    names of packages besides PACKAGES.

    Raises:
        DebianUnavailable: this machine has no apt, or apt cannot reach its sources.
    """
    packages = download(scratch, [*PACKAGES.split(), *more.split()])
    seen: set[str] = set()
    with tarfile.open(archive, "w") as out:
        for name, target in LINKS.items():
            add_link(out, name, target)
            seen.add(name)
        for package in packages:
            for member, content in members(package):
                if member.name and member.name not in seen and not LEFT_OUT.match(member.name):
                    seen.add(member.name)
                    out.addfile(member, io.BytesIO(content) if content is not None else None)


def download(scratch: Path, packages: list[str]) -> list[Path]:
    """Fetch packages and everything that they need."""
    for directory in ("lists/partial", "cache/archives/partial"):
        (scratch / directory).mkdir(parents=True)
    status, sources = scratch / "status", scratch / "sources.list"
    status.write_text("")
    sources.write_text(own_sources())
    options = [
        f"Dir::State::Lists={scratch}/lists",
        f"Dir::State::Status={status}",
        f"Dir::Cache={scratch}/cache",
        f"Dir::Etc::SourceList={sources}",
        "Dir::Etc::SourceParts=/dev/null",
        "Dir::Etc::PreferencesParts=/dev/null",
        "Debug::NoLocking=1",
        "APT::Install-Recommends=0",
        "APT::Sandbox::User=",
        "APT::Update::Post-Invoke-Success=",
        "Acquire::Languages=none",
        "Acquire::Retries=3",
    ]
    # Newer releases trust the distribution's own keyring nowhere but in each source that names it.
    options += [f"Dir::Etc::Trusted={keyring}" for keyring in KEYRINGS if Path(keyring).is_file()][:1]
    apt = ["apt-get", "-q", *(part for option in options for part in ("-o", option))]
    run([*apt, "update"])
    run([*apt, "--yes", "--download-only", "install", *packages])
    return sorted((scratch / "cache" / "archives").glob("*.deb"))


def own_sources() -> str:
    """Return the part of this machine's apt sources that is the distribution itself, leaving out third parties."""
    codename = ""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            codename = line.partition("=")[2].strip('"')
    fields = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"])
    lines = set()
    for line in fields.splitlines():
        uri, release, component = line.split(" ")
        if release.split("-")[0].split("/")[0] == codename and component == "main":
            lines.add(f"deb {uri} {release} {component}")
    if not codename or not lines:
        raise DebianUnavailable("apt knows no sources of this machine's own distribution")
    return "\n".join(sorted(lines)) + "\n"


def run(argv: list[str]) -> str:
    """Run a program of apt's and return its output."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError as error:
        raise DebianUnavailable(f"{argv[0]} is not installed") from error
    if done.returncode != 0:
        raise DebianUnavailable(f"{argv[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def members(package: Path) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Yield what a package puts into the file system, with paths as they are when /bin and /lib are links into /usr."""
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as source:
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            member.name = merged(member.name)
            if member.islnk():
                member.linkname = merged(member.linkname)
            yield member, content.read() if content else None


def merged(name: str) -> str:
    """Return a path of a package in the form `usr/bin/x`."""
    clean = name.removeprefix("./").strip("/")
    if clean == "." or clean in MERGED:
        return ""
    return f"usr/{clean}" if clean.partition("/")[0] in MERGED else clean


def add_link(out: tarfile.TarFile, name: str, target: str) -> None:
    """Add a symbolic link to an archive."""
    link = tarfile.TarInfo(name)
    link.type, link.linkname, link.mode = tarfile.SYMTYPE, target, 0o777
    out.addfile(link)
