"""Base of sandboxes whose runner is a child or grandchild process: streams into it, its state, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.base import SandboxStatus
from hermes_exec.backends.owner import process_state
from hermes_exec.backends.process import kill_with_descendants, open_child
from hermes_exec.backends.sandbox_directory import SandboxDirectory
from hermes_exec.errors import LaunchError, PostMortem, SandboxDied

GRACE_S = 5.0
LAST_GRACE_S = 1.0


class ChildSandbox:
    """A sandbox in a directory of this host.

    `process` ends with the runner, whose pid is `runner`. `program` attaches to the runner that serves at `base`.
    """

    user: str | None = None
    workdir: str | None = None

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        runner: int,
        directory: SandboxDirectory,
        program: Path,
        base: Path,
        limits: Mapping[str, str],
    ) -> None:
        self.id = name
        self.limits = limits
        self._process = process
        self._runner = runner
        self._directory = directory
        self._attach = (str(program), str(base))
        self._attached: list[subprocess.Popen[bytes]] = []

    async def open(self, argv: Sequence[str]) -> FdStream:
        """See `Sandbox.open`. The stream is a socket; its other end is the runner's stdin and stdout."""
        if self._process.poll() is not None:
            raise SandboxDied("the sandbox has ended", post_mortem=self._post_mortem(), sandbox=self.id)
        self._attached = [child for child in self._attached if child.poll() is None]
        program, base = self._attach
        try:
            child, stream = open_child([program, *argv, "--base", base], self._directory.log, {"LANG": "C.UTF-8"})
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}", sandbox=self.id) from error
        self._attached.append(child)
        return stream

    async def status(self) -> SandboxStatus:
        """Return the state of the runner's process; a stopped one is `unknown`."""
        if self._process.poll() is not None:
            return SandboxStatus("dead", self._post_mortem())
        self._directory.truncate_log()
        if process_state(self._runner) in {"T", "t"}:
            return SandboxStatus("unknown", detail="the runner is stopped")
        return SandboxStatus("alive")

    def host_pid(self) -> int:
        """See `HostVisible.host_pid`."""
        return self._runner

    def signal_now(self, number: int) -> None:
        """See `Signalable.signal_now`."""
        # Once the process has ended, the pid may belong to another one.
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._runner, number)

    def _post_mortem(self) -> PostMortem:
        code = self._process.returncode
        if code < 0:
            reason, exit_code = f"the runner was ended by {signal.Signals(-code).name}", 128 - code
        else:
            reason, exit_code = f"the runner ended with exit code {code}", code
        return PostMortem(reason, exit_code=exit_code, log_tail=self._directory.log_tail(), suspect="outside")

    async def destroy(self) -> None:
        """End the runner, allowing time for its own cleanup, and remove the directory."""
        with anyio.CancelScope(shield=True):
            if self._process.poll() is None:
                self.signal_now(signal.SIGTERM)
                await self._wait_for_end(GRACE_S)
            await anyio.to_thread.run_sync(self.destroy_now)

    async def _wait_for_end(self, patience_s: float) -> None:
        deadline, pause_s = time.monotonic() + patience_s, 0.001
        while self._process.poll() is None and time.monotonic() < deadline:
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def destroy_now(self) -> None:
        """End the runner with little patience, and remove the directory."""
        # The process that started the runner cleans up after it, if it gets the time.
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal_now(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=LAST_GRACE_S)
        for child in (self._process, *self._attached):
            kill_with_descendants(child)
        self._attached.clear()
        self._remove()

    def _remove(self) -> None:
        self._directory.remove()
