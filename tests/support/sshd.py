"""A real SSH server of our own on loopback: started and ended by tests, with keys of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_exec.backends.owner import descendants

PROGRAM = "/usr/sbin/sshd"
READY_S = 60.0
SETTINGS = """
ListenAddress {address}
Port {port}
HostKey {directory}/host_key
PidFile {directory}/sshd.pid
AuthorizedKeysFile {directory}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxSessions 64
MaxStartups 100:30:200
UseDNS no
{settings}
SetEnv SHLVL=2
"""
"""Of several SetEnv the first counts. The last line keeps bash from reading ~/.bashrc at each login: what some have
there takes half a second.
"""


def missing() -> str:
    """Why there can be no server here, empty if there can."""
    if not os.access(PROGRAM, os.X_OK):
        return f"there is no {PROGRAM}"
    return "" if shutil.which("ssh-keygen") else "there is no ssh-keygen"


@dataclass
class Server:
    """One server. `port` stays the same when it is restarted."""

    directory: Path
    user: str
    settings: str = ""
    port: int = 0
    address: str = "127.0.0.1"
    inside: tuple[str, ...] = ()
    """A command that runs the server elsewhere on this machine."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Listen; returns when it does."""
        (self.directory / "config").write_text(
            SETTINGS.format(port=self.port, address=self.address, directory=self.directory, settings=self.settings)
        )
        log = (self.directory / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*self.inside, PROGRAM, "-D", "-e", "-f", str(self.directory / "config")],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait()

    def wait(self) -> None:
        """Return when it answers.

        Raises:
            RuntimeError: it has ended, or does not.
        """
        assert self._process is not None
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), timeout=1):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError((self.directory / "log").read_text())

    def stop(self, *, connections: bool = True) -> None:
        """End it, and what serves its connections."""
        if self._process is None:
            return
        children = descendants(self._process.pid) if connections else []
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._process.wait()
        self._process = None

    @property
    def known_hosts(self) -> str:
        """Its key, as clients keep it."""
        return (self.directory / "known_hosts").read_text()

    def options(self, **more: Any) -> dict[str, Any]:
        """Options of the backend for this server."""
        return {
            "hosts": f"{self.user}@{self.address}:{self.port}",
            "identity_file": str(self.directory / "key"),
            "known_hosts": str(self.directory / "known_hosts"),
            "ssh_config": "/dev/null",
            **more,
        }


def make_key(path: Path, passphrase: str = "") -> None:
    """A private key with its public one beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)


@contextmanager
def server(
    user: str | None = None, settings: str = "", *, address: str = "127.0.0.1", inside: tuple[str, ...] = ()
) -> Iterator[Server]:
    """A server that lets one user in, with more settings."""
    os.makedirs("/run/sshd", exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="sshd-test-"))
    made = Server(directory, user or pwd.getpwuid(os.geteuid()).pw_name, settings, address=address, inside=inside)
    try:
        directory.chmod(0o755)
        for name in ("host_key", "key"):
            make_key(directory / name)
        shutil.copy(directory / "key.pub", directory / "authorized_keys")
        (directory / "authorized_keys").chmod(0o644)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            made.port = free.getsockname()[1]
        made.start()
        host = (directory / "host_key.pub").read_text().split()
        (directory / "known_hosts").write_text(f"[{address}]:{made.port} {host[0]} {host[1]}\n")
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)
