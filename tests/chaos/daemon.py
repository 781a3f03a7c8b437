"""A Docker daemon of the test's own, in a network namespace of its own, which it may stop and start."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from tests.images.build import ensure

PATIENCE_S = 60.0


def possible() -> bool:
    """Whether a second daemon can be had on this machine."""
    return os.geteuid() == 0 and all(map(shutil.which, ("dockerd", "unshare")))


class Daemon:
    """A dockerd with its own data, socket and bridge."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root
        self.url = f"unix://{root}/s"
        self.options = options
        self.image = ""
        self.process: subprocess.Popen[bytes] | None = None

    def looking(self) -> contextlib.closing[docker.DockerClient]:
        """A client of the test's own, to look from outside."""
        return contextlib.closing(docker.DockerClient(base_url=self.url, version="1.41", timeout=30))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        places = [f"--{what}-root={self.root}/{what}" for what in ("data", "exec")]
        # A bound of its own on descriptors: what it cannot remove is made in a moment.
        command = [
            "prlimit",
            "--nofile=2048",
            "unshare",
            "--net",
            "dockerd",
            *places,
            f"--pidfile={self.root}/pid",
            f"--host={self.url}",
        ]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.looking() as client:
                    client.ping()
                return
            except (docker.errors.DockerException, OSError):
                assert self.process.poll() is None, (self.root / "log").read_text()[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop it as a service manager does, and wait for its end."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def fill(self) -> None:
        """Give it an image of the machine's own daemon."""
        with contextlib.closing(docker.from_env()) as theirs, self.looking() as ours:
            self.image = ensure(theirs, "busybox")
            ours.images.load(b"".join(theirs.images.get(self.image).save(named=self.image)))

    def remove(self) -> None:
        """Stop it and remove all that it had."""
        self.stop()
        subprocess.run(["umount", "-R", f"{self.root}/data"], capture_output=True, check=False)
        shutil.rmtree(self.root, ignore_errors=True)
        # The SDK leaves the socket of a refused connection to the garbage collector.
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()


@contextmanager
def own_daemon(*options: str) -> Iterator[Daemon]:
    """A running daemon with an image."""
    daemon = Daemon(Path(tempfile.mkdtemp()), *options)
    daemon.start()
    try:
        daemon.fill()
        yield daemon
    finally:
        daemon.remove()
