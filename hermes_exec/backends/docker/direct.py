"""The direct stream into a container: its runner calls the driver through a mounted socket, without the daemon."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hermes_exec.aio.peers import tells_peers
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.delivery import DeliveryMethod
from hermes_exec.backends.docker.dial_socket import DialSocket

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)
PATIENCE_S = 2.0
DIRECT_RUNTIMES = (None, "runc", "crun", "youki")
"""Other runtimes (gVisor, Kata) have a kernel of their own, which cannot connect to a socket of this host."""


class DirectStreams:
    """Opens a socket per container; after one failure, streams go through the daemon (exec)."""

    def __init__(self, config: DockerConfig) -> None:
        self._of_use = config.runtime in DIRECT_RUNTIMES and tells_peers()

    @contextmanager
    def open(self, method: DeliveryMethod) -> Iterator[DialSocket | None]:
        """A socket that is closed with the block; None where there is none."""
        dial_socket = None
        if self._of_use and method == "bind":
            try:
                dial_socket = DialSocket()
            except OSError as error:
                self._give_up(f"no socket can be made: {error}")
        try:
            yield dial_socket
        finally:
            if dial_socket is not None:
                dial_socket.close()

    def accept(self, client: DockerClient, container: str, dial_socket: DialSocket | None) -> socket.socket | None:
        """The connection of a started container's main process; blocking. None: use the daemon's."""
        if dial_socket is None:
            return None
        caller = dial_socket.accept(int(client.api.inspect_container(container)["State"]["Pid"]), PATIENCE_S)
        if caller is None:
            self._give_up("the runner did not connect")
        return caller

    def _give_up(self, why: str) -> None:
        self._of_use = False
        logger.info("streams into containers go through the daemon: %s", why)
