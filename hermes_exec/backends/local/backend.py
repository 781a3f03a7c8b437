"""The local backend: a box is a runner that is a child process of ours, in a session and a private directory of its
own.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_exec.backends import runner_binary
from hermes_exec.backends.base import Labels, LaunchSpec, Reaped, ReapFilter, SandboxInfo, check_host_box
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.local.directory import LocalDir, check_parent, find_directories, make_directory
from hermes_exec.backends.local.sandbox import LocalSandbox
from hermes_exec.backends.owner import owner_state, reap_reason
from hermes_exec.backends.process import start_child
from hermes_exec.backends.threads import launch_in_thread
from hermes_exec.errors import ConfigError, LaunchError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
        check_host_box(self.name, spec)
        if platform.system() not in {"Linux", "Darwin"}:
            raise ConfigError(f"the local backend does not run on {platform.system()}")
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
            process = start_child(command, directory.log, env, subprocess.DEVNULL)
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
            reason = reap_reason(which, info.labels, info.owner, ended=info.ended)
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
            owner = owner_state(labels, shared_engine=False)
            info = SandboxInfo(name, self.name, labels, owner, state, created_at=created)
            found.append((directory, info))
        return found

    async def aclose(self) -> None:
        """Nothing is held."""
