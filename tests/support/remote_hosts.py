"""Hosts of their own for tests: network namespaces with an SSH server each, behind links that can be cut and slowed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.sshd import Server, server


def missing() -> str:
    """Why there can be none here, empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    return tried.stderr.decode().strip() if tried.returncode else ""


@dataclass
class RemoteHost:
    """One host, and both ends of the link to it."""

    server: Server
    device: str
    inside: tuple[str, ...]
    peer: str

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        run(*self.inside, "ip", "link", "set", self.peer, "down")

    def mend(self) -> None:
        """All passes again; returns when it does."""
        run(*self.inside, "ip", "link", "set", self.peer, "up")
        run("ip", "neighbour", "flush", "dev", self.device)
        self.server.wait()

    def throttle(self, mbit_per_s: int) -> None:
        """So much passes towards the host."""
        limit = ("rate", f"{mbit_per_s}mbit", "burst", "32kbit", "latency", "50ms")
        run("tc", "qdisc", "replace", "dev", self.device, "root", "tbf", *limit)


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def remote_host(number: int) -> Iterator[RemoteHost]:
    """A host, of which a test may have several with different numbers."""
    name, network = f"hermes{os.getpid()}-{number}", f"10.213.{os.getpid() % 64 * 4 + number}"
    device, peer = f"h{os.getpid()}-{number}a", f"h{os.getpid()}-{number}b"
    with ExitStack() as stack:
        run("ip", "netns", "add", name)
        stack.callback(run, "ip", "netns", "del", name)
        run("ip", "link", "add", device, "type", "veth", "peer", "name", peer, "netns", name)
        run("ip", "address", "add", f"{network}.1/24", "dev", device)
        run("ip", "link", "set", device, "up")
        inside = ("ip", "netns", "exec", name)
        run(*inside, "ip", "address", "add", f"{network}.2/24", "dev", peer)
        for each in ("lo", peer):
            run(*inside, "ip", "link", "set", each, "up")
        made = stack.enter_context(server(address=f"{network}.2", inside=inside))
        yield RemoteHost(made, device, inside, peer)
