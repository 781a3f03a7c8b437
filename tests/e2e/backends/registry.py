"""A real image registry on loopback: Debian's `docker-registry`, installed or unpacked into `.cache`."""

from __future__ import annotations

import contextlib
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import NotFound

ROOT = Path(__file__).resolve().parents[3]
USER, PASSWORD = "me", "hush"
HTPASSWD = f"{USER}:$2b$05$RJUX6nR72jurpWOF0.wUc.VT4.NQfGAM.2gz/5DJreOOPRFPK4Jb.\n"
CONFIG = """version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {root}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
AUTH = "auth: {{htpasswd: {{realm: test, path: {root}/htpasswd}}}}\n"


@cache
def program() -> Path | str:
    """The registry's program, or why there is none."""
    if found := shutil.which("docker-registry"):
        return Path(found)
    kept = ROOT / ".cache" / "registry" / platform.machine()
    if not (kept / "usr/bin/docker-registry").exists():
        kept.mkdir(parents=True, exist_ok=True)
        try:
            for command in (["apt-get", "download", "docker-registry"], ["sh", "-c", "dpkg -x ./*.deb ."]):
                subprocess.run(command, cwd=kept, capture_output=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            return f"no docker-registry here, and apt-get does not bring it: {error}"
    return kept / "usr/bin/docker-registry"


class Registry:
    """One registry of a test's own."""

    def __init__(self, root: Path, *, auth: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.host = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.host.partition(":")[2]
        (root / "htpasswd").write_text(HTPASSWD)
        (root / "config.yml").write_text((CONFIG + AUTH * auth).format(root=root, port=port))
        with (root / "log").open("wb") as log:
            command = [str(program()), "serve", str(root / "config.yml")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.log = root / "log"

    def wait(self) -> None:
        """Wait until it listens."""
        host, _, port = self.host.partition(":")
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)


@contextlib.contextmanager
def registry(directory: Path, *, auth: bool) -> Iterator[Registry]:
    """A registry that starts empty. Skips where none is to be had."""
    if isinstance(why := program(), str):
        pytest.skip(why)
    own = Registry(directory, auth=auth)
    try:
        own.wait()
        yield own
    finally:
        own.close()


@contextlib.contextmanager
def serving(engine: DockerClient, directory: Path, *, auth: bool) -> Iterator[Registry]:
    """The same; what the engine got from it is removed."""
    with contextlib.ExitStack() as held:
        own = held.enter_context(registry(directory, auth=auth))
        held.callback(_forget, engine, own)
        yield own


def _forget(engine: DockerClient, own: Registry) -> None:
    for image in engine.api.images():  # `engine.images.list` fails where another test removes one meanwhile
        for name in [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]:
            if name.startswith(f"{own.host}/"):
                with contextlib.suppress(NotFound):  # it went with its other name
                    engine.images.remove(name, force=True, noprune=True)


def publish(engine: DockerClient, server: Registry, source: str, version: str, content: str) -> str:
    """Push an image with a file of this content, and remove it from the engine."""
    repository = f"{server.host}/team/tool"
    container = engine.containers.create(source, ["/bin/sh", "-c", f"echo {content} > /version"], network_mode="none")
    container.start()
    container.wait()
    container.commit(repository, version)
    container.remove()
    pushed = engine.images.push(repository, version, auth_config={"username": USER, "password": PASSWORD})
    assert '"error"' not in pushed, pushed
    engine.images.remove(f"{repository}:{version}")
    return f"{repository}:{version}"
