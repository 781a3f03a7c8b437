"""One local box: streams into its runner, its state, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.base import SandboxStatus
from hermes_exec.backends.local.directory import LocalDir
from hermes_exec.backends.owner import process_state
from hermes_exec.backends.process import open_child
from hermes_exec.errors import LaunchError, PostMortem, SandboxDied

GRACE_S = 5.0
LAST_GRACE_S = 1.0


class LocalSandbox:
    """One local box."""

    user: str | None = None
    workdir: str | None = None

    def __init__(
        self, process: subprocess.Popen[bytes], directory: LocalDir, program: Path, env: dict[str, str]
    ) -> None:
        self.id = f"local-{process.pid}"
        self.limits: dict[str, str] = {}
        self._process = process
        self._directory = directory
        self._program = program
        self._env = env
        self._attached: list[subprocess.Popen[bytes]] = []

    async def open(self, argv: Sequence[str]) -> FdStream:
        """See ``Sandbox.open``; the stream is a socket whose other end is the runner's stdin and stdout."""
        if self._process.poll() is not None:
            raise SandboxDied("the box has ended", post_mortem=self._post_mortem(), sandbox=self.id)
        self._attached = [child for child in self._attached if child.poll() is None]
        command = [str(self._program), *argv, "--base", str(self._directory.box)]
        try:
            child, stream = open_child(command, self._directory.log, self._env)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}", sandbox=self.id) from error
        self._attached.append(child)
        return stream

    async def status(self) -> SandboxStatus:
        """The state of the runner's process; a stopped one is ``unknown``."""
        if self._process.poll() is not None:
            return SandboxStatus("dead", self._post_mortem())
        self._directory.bound_log()
        if process_state(self._process.pid) in {"T", "t"}:
            return SandboxStatus("unknown", detail="the runner is stopped")
        return SandboxStatus("alive")

    def host_pid(self) -> int:
        """See ``HostVisible.host_pid``."""
        return self._process.pid

    def kill_now(self) -> None:
        """See ``Killable.kill_now``."""
        self._process.kill()

    def _post_mortem(self) -> PostMortem:
        code = self._process.returncode
        if code < 0:
            reason, exit_code = f"the runner was ended by {signal.Signals(-code).name}", 128 - code
        else:
            reason, exit_code = f"the runner ended with exit code {code}", code
        return PostMortem(reason, exit_code=exit_code, log_tail=self._directory.log_tail(), suspect="outside")

    async def destroy(self) -> None:
        """End the runner, with time to end what it started, and remove the directory."""
        with anyio.CancelScope(shield=True):
            if self._process.poll() is None:
                self._process.terminate()
                await self._gone(GRACE_S)
            await anyio.to_thread.run_sync(self.destroy_now)

    async def _gone(self, patience_s: float) -> None:
        deadline, pause_s = time.monotonic() + patience_s, 0.001
        while self._process.poll() is None and time.monotonic() < deadline:
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def destroy_now(self) -> None:
        """End the runner with little patience, and remove the directory."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=LAST_GRACE_S)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        for child in (*self._attached, self._process):
            if child is not self._process and child.poll() is None:
                child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=GRACE_S)
        self._attached.clear()
        self._directory.remove()
