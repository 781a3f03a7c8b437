"""One box on another host."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import anyio

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.base import SandboxStatus
from hermes_exec.backends.ssh.host import Host
from hermes_exec.backends.threads import in_thread, launch_in_thread
from hermes_exec.errors import ChannelLost, ExecError, PostMortem, SandboxDied


class SSHSandbox:
    """See ``Sandbox``. It outlives connections: only its lease and `destroy` end it."""

    user: str | None = None
    workdir: str | None = None

    def __init__(self, host: Host, base: str, limits: Mapping[str, str], limiter: anyio.CapacityLimiter) -> None:
        self.id = host.box_name(base)
        self.limits = limits
        self._host = host
        self._base = base
        self._limiter = limiter

    async def open(self, argv: Sequence[str]) -> FdStream:
        """See ``Sandbox.open``."""
        try:
            return await launch_in_thread(lambda: self._host.open(self._base, argv), FdStream.close_now, self._limiter)
        except ExecError as error:
            status = await self.status()
            if status.state == "dead":
                raise SandboxDied("the box has ended", post_mortem=status.post_mortem, sandbox=self.id) from error
            raise ChannelLost(f"no stream into the box: {error}", sandbox=self.id) from error

    async def status(self) -> SandboxStatus:
        """See ``Sandbox.status``."""
        try:
            told = await in_thread(lambda: self._host.status(self._base), self._limiter)
        except ExecError as error:
            return SandboxStatus("unknown", detail=str(error))
        if told.get("state") == "ended":
            tail = str(told.get("log", ""))
            return SandboxStatus("dead", PostMortem("the runner has ended", log_tail=tail, suspect="outside"))
        if told.get("state") == "stopped":
            return SandboxStatus("unknown", detail="the runner is stopped")
        return SandboxStatus("alive")

    async def destroy(self) -> None:
        """See ``Sandbox.destroy``."""
        await in_thread(lambda: self._host.end(self._base), self._limiter)

    def destroy_now(self) -> None:
        """See ``Sandbox.destroy_now``."""
        with contextlib.suppress(ExecError):
            self._host.end(self._base)

    def signal_now(self, number: int) -> None:
        """See ``Signalable.signal_now``."""
        self._host.signal(self._base, number)
