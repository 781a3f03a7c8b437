"""One sandbox on another host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.base import SandboxStatus
from hermes_exec.backends.engine_errors import open_error
from hermes_exec.backends.ssh.host import Host
from hermes_exec.backends.threads import launch_in_thread, run_in_thread
from hermes_exec.errors import ExecError, PostMortem


class SSHSandbox:
    """See `Sandbox`. It outlives connections: only its lease and `destroy` end it."""

    user: str | None = None
    workdir: str | None = None

    def __init__(
        self,
        host: Host,
        base: str,
        first: FdStream,
        limits: Mapping[str, str],
        slots: int | None,
        gone: Callable[[], None],
    ) -> None:
        self.id = host.sandbox_name(base)
        self.limits = limits
        self.slots = slots
        self._host = host
        self._base = base
        self._first: FdStream | None = first
        """The stream that was opened with the sandbox."""
        self._gone = gone

    async def open(self, argv: Sequence[str]) -> FdStream:
        """See `Sandbox.open`."""
        if self._first is not None and list(argv) == ["attach"]:
            first, self._first = self._first, None
            return first
        try:
            work = partial(self._host.open, self._base, argv)
            return await launch_in_thread(work, FdStream.close_now, self._host.limiter)
        except ExecError as error:
            raise await open_error(self, "sandbox", error) from error

    async def status(self) -> SandboxStatus:
        """See `Sandbox.status`."""
        try:
            status = await run_in_thread(partial(self._host.status, self._base), self._host.limiter)
        except ExecError as error:
            return SandboxStatus("unknown", detail=str(error))
        if status.get("state") == "ended":
            tail = str(status.get("log", ""))
            return SandboxStatus("dead", PostMortem("the runner has ended", log_tail=tail, suspect="outside"))
        if status.get("state") == "stopped":
            return SandboxStatus("unknown", detail="the runner is stopped")
        return SandboxStatus("alive")

    async def destroy(self) -> None:
        """See `Sandbox.destroy`. If the host is away, the lease ends the sandbox."""
        self._close_first()
        try:
            await run_in_thread(partial(self._host.end, self._base), self._host.limiter)
        finally:
            self._gone()

    def destroy_now(self) -> None:
        """See `Sandbox.destroy_now`."""
        self._close_first()
        with contextlib.suppress(ExecError):
            self._host.end(self._base)

    def _close_first(self) -> None:
        if self._first is not None:
            self._first.close_now()

    def signal_now(self, number: int) -> None:
        """See `Signalable.signal_now`."""
        self._host.signal(self._base, number)
