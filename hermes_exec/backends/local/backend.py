"""The local backend: a box is a runner that is a child process of ours, in a session and a private directory of its
own.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends import runner_binary
from hermes_exec.backends.base import Labels, LaunchSpec, Reaped, ReapFilter, SandboxInfo, SandboxStatus
from hermes_exec.backends.local.directory import LocalDir, check_parent, find_directories, make_directory
from hermes_exec.backends.owner import owner_state, process_state, reap_reason
from hermes_exec.backends.threads import launch_in_thread
from hermes_exec.config import BackendConfig, LocalConfig
from hermes_exec.errors import ConfigError, LaunchError, PostMortem, SandboxDied

Config = LocalConfig
GRACE_S = 5.0
LAST_GRACE_S = 1.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalSandbox:
    """One local box."""

    user: str | None = None

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
        """See ``Sandbox.open``; the stream is a socket, and the one end of it the runner's stdin and stdout."""
        if self._process.poll() is not None:
            raise SandboxDied("the box has ended", post_mortem=self._post_mortem(), sandbox=self.id)
        self._attached = [child for child in self._attached if child.poll() is None]
        ours, theirs = socket.socketpair()
        with theirs:
            command = [str(self._program), *argv, "--base", str(self._directory.box)]
            try:
                with self._directory.log.open("ab") as log:
                    child = _start(command, theirs.fileno(), log.fileno(), self._env)
            except OSError as error:
                ours.close()
                raise LaunchError(f"the runner cannot be started: {error}", sandbox=self.id) from error
        self._attached.append(child)
        return FdStream(ours.detach())

    async def status(self) -> SandboxStatus:
        """The state of the runner's process; a stopped one is ``unknown``."""
        if self._process.poll() is not None:
            return SandboxStatus("dead", self._post_mortem())
        self._directory.bound_log()
        if process_state(self._process.pid) in {"T", "t"}:
            return SandboxStatus("unknown", detail="the runner is stopped")
        return SandboxStatus("alive")

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


class LocalBackend:
    """Runs boxes on this host."""

    name = "local"
    whole_box = False
    private_root = True

    def __init__(self, config: LocalConfig) -> None:
        self._config = config

    @property
    def readonly_paths(self) -> tuple[str, ...]:
        """What slots may read besides the system: the Python in use, and what the configuration names."""
        return tuple(dict.fromkeys((*self._config.readonly_paths, sys.prefix, sys.base_prefix)))

    async def check(self, spec: LaunchSpec) -> None:
        """See ``Backend.check``."""
        if spec.image is not None:
            raise ConfigError(f"the local backend has no images, and image={spec.image!r} was given")
        if platform.system() not in {"Linux", "Darwin"}:
            raise ConfigError(f"the local backend does not run on {platform.system()}")
        if spec.limits.box() and not spec.best_effort_limits:
            named = ", ".join(spec.limits.box())
            raise ConfigError(f"a local box cannot be limited ({named}): use slot_limits, or best_effort_limits=True")
        runner_binary.find_runner()
        check_parent(self._config.base_dir)

    async def launch(self, spec: LaunchSpec, labels: Labels) -> LocalSandbox:
        """See ``Backend.launch``."""
        await self.check(spec)
        program = runner_binary.path()
        return await launch_in_thread(partial(self._launch, spec, labels, program), LocalSandbox.destroy_now)

    def _launch(self, spec: LaunchSpec, labels: Labels, program: Path) -> LocalSandbox:
        directory = make_directory(self._config.base_dir, labels)
        env = {"PATH": f"{os.path.dirname(sys.executable)}:{SYSTEM_PATH}", "LANG": "C.UTF-8"}
        command = [str(program), "serve", "--base", str(directory.box), "--lease-s", str(spec.lease_s)]
        command += ["--parent", str(os.getpid())]
        try:
            with directory.log.open("ab") as log:
                process = _start(command, subprocess.DEVNULL, log.fileno(), env)
        except OSError as error:
            directory.remove()
            raise LaunchError(f"the runner cannot be started: {error}") from error
        directory.remember_runner(process.pid)
        sandbox = LocalSandbox(process, directory, program, env)
        sandbox.limits = dict.fromkeys(spec.limits.box(), "not enforced")
        return sandbox

    async def reap(self, which: ReapFilter) -> list[Reaped]:
        """See ``Backend.reap``."""
        return await anyio.to_thread.run_sync(self._reap, which)

    def _reap(self, which: ReapFilter) -> list[Reaped]:
        ended = []
        for directory, info in self._found():
            reason = reap_reason(which, info.labels, info.owner)
            if reason is not None:
                directory.end_runner()
                directory.remove()
                ended.append(Reaped(info.sandbox, self.name, info.labels.run_id, reason))
        return ended

    async def sandboxes(self) -> list[SandboxInfo]:
        """See ``Backend.sandboxes``."""
        return [info for _, info in await anyio.to_thread.run_sync(self._found)]

    def _found(self) -> list[tuple[LocalDir, SandboxInfo]]:
        found: list[tuple[LocalDir, SandboxInfo]] = []
        for directory in find_directories(self._config.base_dir):
            labels = directory.owner()
            if labels is None:
                continue
            pid = directory.runner_pid()
            name = directory.path.name if pid is None else f"local-{pid}"
            state = "ended" if pid is None else "running"
            created = directory.created_at()
            info = SandboxInfo(name, self.name, labels, owner_state(labels), state, created_at=created)
            found.append((directory, info))
        return found

    async def aclose(self) -> None:
        """Nothing is held."""


def _start(command: list[str], stdio: int, log: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A child in a session of its own that has none of our descriptors, environment or signal settings."""
    return subprocess.Popen(
        command, stdin=stdio, stdout=stdio, stderr=log, env=env, cwd="/", start_new_session=True, close_fds=True
    )


def create(config: BackendConfig) -> LocalBackend:
    """Make the backend from its configuration."""
    if not isinstance(config, LocalConfig):
        raise ConfigError(f"the local backend takes a LocalConfig, not {type(config).__name__}")
    return LocalBackend(config)
