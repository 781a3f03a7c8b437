"""Podman's API, which is compatible with Docker's, on a socket of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_S = 30.0
CONFIG = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
"""Podman's defaults raise limits beyond those of a machine in a container, and need systemd."""


def missing() -> str:
    """Return why Podman cannot be used here, or ""."""
    if os.geteuid() != 0:
        return "the tests run Podman as root"
    return "" if shutil.which("podman") else "there is no podman: run .ci/podman"


@dataclass(frozen=True)
class Service:
    """A running service, whose images and containers are in its directory."""

    directory: Path

    @property
    def address(self) -> str:
        """The address of its socket."""
        return f"unix://{self.directory}/socket"

    @property
    def command(self) -> list[str]:
        """The beginning of a command for its images and containers."""
        return ["podman", "--root", f"{self.directory}/root", "--runroot", f"{self.directory}/run"]

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command."""
        return {**os.environ, "CONTAINERS_CONF": f"{self.directory}/containers.conf"}

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command of Podman, and return its output."""
        argv = [*self.command, *words]
        return subprocess.run(argv, env=self.env, check=check, capture_output=True, text=True).stdout

    def load(self, image: str) -> None:
        """Copy an image from Docker."""
        archive = self.directory / "image.tar"
        subprocess.run(["docker", "save", "--output", archive, image], check=True, capture_output=True)
        self.run("load", "--input", str(archive))
        archive.unlink()


@contextmanager
def service() -> Iterator[Service]:
    """Run the service. Its containers and images are removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="podman-test-", dir="/tmp"))  # short, for the path of the socket
    (directory / "containers.conf").write_text(CONFIG)
    made = Service(directory)
    with (directory / "log").open("wb") as log:
        argv = [*made.command, "system", "service", "--time", "0", made.address]
        process = subprocess.Popen(argv, env=made.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + READY_S
        while not (directory / "socket").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no Podman: {(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield made
    finally:
        made.run("rm", "--all", "--force", "--time", "0", check=False)
        process.terminate()
        process.wait(timeout=READY_S)
        subprocess.run(["umount", "--lazy", directory / "root" / "overlay"], capture_output=True, check=False)
        shutil.rmtree(directory, ignore_errors=True)
