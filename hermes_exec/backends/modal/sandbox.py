"""One sandbox of Modal: streams into it, its state, its end."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.base import OWN_EXIT_CODES, SandboxStatus
from hermes_exec.backends.engine_errors import open_error
from hermes_exec.backends.modal.client import ANSWER_S, ModalClient
from hermes_exec.backends.modal.images import RUNNER
from hermes_exec.backends.modal.stream import ModalStreams
from hermes_exec.errors import ExecError, LaunchError, PostMortem, Suspect

if TYPE_CHECKING:
    import modal

STATE_DIR = "/hermes-exec/state"
BASE = f"{STATE_DIR}/base"
LOG_S = 2.0
LOG_BYTES = 8192
EXIT_TIMEOUT_S = 10.0


class ModalSandbox:
    """See `Sandbox`, `HasDeadline`, `HasImageID` and `Signalable`."""

    user: str | None = None

    def __init__(
        self,
        client: ModalClient,
        streams: ModalStreams,
        sandbox: modal.Sandbox,
        workdir: str,
        limits: Mapping[str, str],
        ends_at: float,
        *,
        exclusive: bool,
        image_id: str,
    ) -> None:
        self.id = sandbox.object_id
        self.image_id = image_id
        self.workdir = workdir
        self.limits = limits
        self.ends_at = ends_at
        self._client = client
        self._streams = streams
        self._sandbox = sandbox
        self._exclusive = exclusive
        self._ended = False

    async def open(self, argv: Sequence[str]) -> FdStream:
        """See `Sandbox.open`. The stream is a process beside the runner's."""
        try:
            return FdStream((await self._client.call(partial(self._open, argv))).detach())
        except ExecError as error:
            raise await open_error(self, "sandbox", error) from error

    async def _open(self, argv: Sequence[str]) -> socket.socket:
        return await self._streams.open(await exec_runner(self._sandbox, *argv, "--base", BASE))

    async def status(self) -> SandboxStatus:
        """See `Sandbox.status`."""
        from modal.exception import NotFoundError

        if self._ended:
            return SandboxStatus("dead", PostMortem("the sandbox was ended by its pool", suspect="outside"))
        try:
            return await self._client.call(self._status)
        except ExecError as error:
            if isinstance(error.__cause__, NotFoundError):
                return SandboxStatus("dead", PostMortem("Modal no longer lists the sandbox", suspect="outside"))
            return SandboxStatus("unknown", detail=str(error))

    async def _status(self) -> SandboxStatus:
        from modal.exception import SandboxTerminatedError, SandboxTimeoutError

        code = await self._sandbox.poll.aio()
        if code is None:
            return SandboxStatus("alive")
        log = await self._log_tail()
        suspect: Suspect = "outside"
        try:
            await self._sandbox.wait.aio()
        except SandboxTimeoutError:
            reason = "its lifetime on Modal was over"
        except SandboxTerminatedError:
            reason = "Modal has ended it: it was terminated, preempted, or idle"
        else:
            reason = f"its runner ended with exit code {code}"
            # Process 1 is Modal's init: commands of an exclusive slot can kill the runner, or use up memory.
            suspect = "tenant" if self._exclusive and code not in OWN_EXIT_CODES else "unknown"
        return SandboxStatus("dead", PostMortem(reason, exit_code=code, log_tail=log, suspect=suspect))

    async def _log_tail(self) -> str:
        with contextlib.suppress(Exception), anyio.move_on_after(LOG_S):
            return (await self._sandbox.stderr.read.aio())[-LOG_BYTES:]
        return ""

    async def destroy(self) -> None:
        """See `Sandbox.destroy`."""
        if not self._ended:
            await self._client.call(self._end)

    def destroy_now(self) -> None:
        """See `Sandbox.destroy_now`."""
        if not self._ended:
            with contextlib.suppress(ExecError, OSError, RuntimeError):
                self._client.call_now(self._end, EXIT_TIMEOUT_S)

    def signal_now(self, number: int) -> None:
        """See `Signalable.signal_now`. Modal sends no signals; it ends a sandbox as for a preemption."""
        if number != signal.SIGKILL:
            raise LaunchError("Modal sends no signals into a sandbox", sandbox=self.id)
        self._client.call_now(partial(terminate, self._sandbox), ANSWER_S)

    async def _end(self) -> None:
        await terminate(self._sandbox)
        self._ended = True
        await self._sandbox.detach.aio()  # type: ignore[no-untyped-call]


async def exec_runner(
    sandbox: modal.Sandbox, *argv: str, workdir: str | None = "/"
) -> modal.container_process.ContainerProcess[bytes]:
    """Start the runner's program in a sandbox, in the client's event loop."""
    from modal.stream_type import StreamType

    return await sandbox.exec.aio(RUNNER, *argv, stderr=StreamType.DEVNULL, workdir=workdir, text=False)


async def workdir_of(sandbox: modal.Sandbox) -> str:
    """Return the WORKDIR of the image, in the client's event loop: processes start there by default.

    Raises:
        LaunchError: If the sandbox ended during its start.
    """
    from modal.exception import NotFoundError

    try:
        process = await exec_runner(sandbox, "cwd", workdir=None)
        return (await process.stdout.read.aio()).decode("utf-8", "replace").rstrip("\n") or "/"
    except NotFoundError as error:
        code, log = await sandbox.poll.aio(), ""
        with contextlib.suppress(Exception), anyio.move_on_after(LOG_S):
            log = (await sandbox.stderr.read.aio())[-LOG_BYTES:].strip()
        why = f"exit code {code} (are limits.memory_mb and limits.cpus enough?)"
        if log:
            why += f": {log}"
        raise LaunchError(f"the sandbox ended while it started: {why}") from error


async def terminate(sandbox: modal.Sandbox) -> None:
    """End a sandbox, in the client's event loop. A sandbox that Modal no longer lists has ended."""
    from modal.exception import NotFoundError

    with contextlib.suppress(NotFoundError):
        await sandbox.terminate.aio()
