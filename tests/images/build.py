"""Builds the images that the tests use, without an image registry: `python -m tests.images.build [NAME…]`.

An image is named by the content that it is made of (`hermes-exec-test/busybox:<digest of the recipe>`), so a second run
builds nothing. The tag `latest` always means the newest one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.images import busybox, debian
from tests.support.doors import pip_environment

if TYPE_CHECKING:
    import docker

HERE = Path(__file__).resolve().parent
LABEL = "io.hermes-exec.test=1"


class Recipe(NamedTuple):
    """How one image is made."""

    sources: tuple[str, ...]
    changes: tuple[str, ...]
    write: Callable[[Path, Path], None]
    finish: str = ""


class ImageBuildError(Exception):
    """Raised when a test image cannot be built here; the message says why."""


def write_distroless(archive: Path, scratch: Path) -> None:
    """Write a file system that holds one static program and no shell."""
    sys.path.insert(0, str(HERE.parents[1]))
    from hatch_build import FLAGS, Target, find_go, go_environment

    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    env = go_environment(Target("linux", arch))
    subprocess.run(
        [find_go(), "build", *FLAGS, "-o", str(scratch / "probe"), "."], cwd=HERE / "probe", env=env, check=True
    )
    with tarfile.open(archive, "w") as out:
        busybox.add_file(out, "probe", (scratch / "probe").read_bytes(), 0o755)


def write_mini(archive: Path, scratch: Path) -> None:
    """Write Debian with mini-swe-agent in /opt/mini, and its program `mini`. It goes without `datasets`, which only its
    benchmarks need.
    """
    debian.write_rootfs(archive, scratch)
    overrides, packages = scratch / "overrides.txt", scratch / "mini"
    overrides.write_text("datasets; sys_platform == 'never'\n")
    platform_ = f"{platform.machine()}-manylinux_2_28"
    where = ["--target", str(packages), "--python-version", DEBIAN_PYTHON, "--python-platform", platform_]
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", *where, "--only-binary", ":all:"]
    subprocess.run([*uv, "--override", str(overrides), MINI], env=pip_environment(), check=True)
    with tarfile.open(archive, "a") as out:
        out.add(packages, "opt/mini")
        busybox.add_file(out, "usr/local/bin/mini", b'#!/bin/sh\nexec python3 -m minisweagent "$@"\n', 0o755)


DEBIAN_PYTHON = "3.11"
"""The version of Python in Debian 12."""
MINI = "mini-swe-agent==2.4.6"
DEBIAN = ("ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 'CMD ["/bin/bash"]')
RECIPES = {
    "browser": Recipe(
        ("debian.py",), DEBIAN, partial(debian.write_rootfs, more="chromium fonts-dejavu-core"), debian.FINISH
    ),
    "busybox": Recipe(("busybox.py",), ("ENV PATH=/bin", 'CMD ["/bin/sh"]'), busybox.write_rootfs),
    "debian": Recipe(("debian.py",), DEBIAN, debian.write_rootfs, debian.FINISH),
    "mini": Recipe(
        ("debian.py",),
        (*DEBIAN, "ENV PYTHONPATH=/opt/mini", f"LABEL mini={MINI} program=mini"),
        write_mini,
        debian.FINISH,
    ),
    "distroless": Recipe(
        ("probe/main.go", "probe/go.mod"), ("ENV PATH=/", 'CMD ["/probe", "sleep", "3600"]'), write_distroless
    ),
}


def tag(name: str) -> str:
    """Return the full name of a test image, whether it has been built or not."""
    recipe = RECIPES[name]
    digest = hashlib.sha256(repr((name, recipe.changes, recipe.finish, platform.machine())).encode())
    for source in recipe.sources:
        digest.update((HERE / source).read_bytes())
    return f"hermes-exec-test/{name}:{digest.hexdigest()[:12]}"


def ensure(client: docker.DockerClient, name: str) -> str:
    """Return the full name of a test image, after building it if this daemon does not have it.

    Raises:
        ImageBuildError: it cannot be built here.
    """
    from docker.errors import ImageNotFound

    wanted = tag(name)
    try:
        client.images.get(wanted)
    except ImageNotFound:
        print(f"image {wanted}: making it, which takes a minute at most", file=sys.stderr)
        build(client, name, wanted)
    return wanted


def build(client: docker.DockerClient, name: str, wanted: str) -> None:
    """Make the file system, import it, run the recipe's last command in it, and tag the outcome."""
    recipe = RECIPES[name]
    changes = [*recipe.changes, f"LABEL {LABEL}"]
    repository, _, version = wanted.partition(":")
    with tempfile.TemporaryDirectory(prefix="hermes-exec-image-") as directory:
        archive, scratch = Path(directory) / "rootfs.tar", Path(directory) / "scratch"
        scratch.mkdir()
        try:
            recipe.write(archive, scratch)
        except (debian.DebianUnavailable, busybox.BusyboxUnavailable, subprocess.SubprocessError, OSError) as error:
            raise ImageBuildError(f"{name}: {error}") from error
        raw = f"{version}-raw" if recipe.finish else version
        answer = str(client.api.import_image_from_file(str(archive), repository=repository, tag=raw, changes=changes))
    if '"error"' in answer:
        raise ImageBuildError(f"{name}: the daemon refused the import: {answer.strip()[-300:]}")
    if recipe.finish:
        finish(client, repository, raw, version, recipe)
    client.images.get(wanted).tag(repository, "latest")
    remove_older(client, repository, version)


def remove_older(client: docker.DockerClient, repository: str, version: str) -> None:
    """Remove what this version replaces, but for what a container is made of."""
    from docker.errors import APIError

    kept = {f"{repository}:{version}", f"{repository}:latest"}
    for image in client.images.list(name=repository, filters={"label": LABEL}):
        for tag in set(image.tags) - kept:
            with contextlib.suppress(APIError):
                client.images.remove(tag)


def finish(client: docker.DockerClient, repository: str, raw: str, version: str, recipe: Recipe) -> None:
    """Run the recipe's last command in a container of the imported image and keep what it changed."""
    container = client.containers.create(
        f"{repository}:{raw}", ["/bin/sh", "-ec", recipe.finish], network_mode="none", labels=[LABEL.partition("=")[0]]
    )
    try:
        container.start()
        code = int(container.wait(timeout=300)["StatusCode"])
        if code != 0:
            log = container.logs(tail=20).decode(errors="replace")
            raise ImageBuildError(f"{repository}: the last step ended with {code}: {log.strip()[-500:]}")
        container.commit(repository, version, changes="\n".join([*recipe.changes, f"LABEL {LABEL}"]))
    finally:
        container.remove(force=True, v=True)
    client.images.remove(f"{repository}:{raw}", noprune=True)


def main() -> int:
    """Build what is missing and print the names as JSON."""
    import docker

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)} (default: all)")
    parser.add_argument("--tag", choices=list(RECIPES), help="build this one and print nothing but its name")
    options = parser.parse_args()
    names = [options.tag] if options.tag else options.names or list(RECIPES)
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        parser.error(f"no such image: {', '.join(unknown)}")
    tags: dict[str, str] = {}
    try:
        client = docker.from_env(timeout=300)
        for name in names:
            begin = time.monotonic()
            tags[name] = ensure(client, name)
            print(f"image {tags[name]} ready after {time.monotonic() - begin:.1f} s", file=sys.stderr)
    except (docker.errors.DockerException, ImageBuildError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    print(tags[options.tag] if options.tag else json.dumps(tags))
    return 0


if __name__ == "__main__":
    sys.exit(main())
