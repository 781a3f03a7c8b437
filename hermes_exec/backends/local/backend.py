"""The local backend: a sandbox is a runner that is a child process, in a session and a private directory of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from hermes_exec.backends import runner_binary
from hermes_exec.backends.base import Labels, LaunchSpec, check_host_sandbox
from hermes_exec.backends.host_backend import HostBackend
from hermes_exec.backends.host_gpus import divide_slots, gpus_command, parse_gpu_slots
from hermes_exec.backends.local.cgroups import remove_groups
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.local.sandbox import LocalSandbox
from hermes_exec.backends.process import SYSTEM_PATH, start_child
from hermes_exec.backends.sandbox_directory import SandboxDirectory, check_parent, make_directory
from hermes_exec.backends.threads import launch_in_thread, run_in_thread
from hermes_exec.errors import ConfigError, LaunchError

ANSWER_TIMEOUT_S = 60.0
PREFIX = "hermes-exec-"
"""Prefix of the names of sandboxes' directories."""


class LocalBackend(HostBackend):
    """A backend that runs sandboxes on this host."""

    name = "local"
    can_be_exclusive = False
    private_root = True

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config.base_dir, PREFIX)
        self._config = config
        self.gpus = config.gpu_request
        self._gpu_slots = 0

    @property
    def readonly_paths(self) -> tuple[str, ...]:
        """Paths that slots may read besides the system's: the Python in use and the configured paths."""
        return tuple(dict.fromkeys((*self._config.readonly_paths, sys.prefix, sys.base_prefix)))

    async def check(self, spec: LaunchSpec) -> None:
        """See `Backend.check`."""
        check_host_sandbox(self.name, spec)
        if platform.system() not in {"Linux", "Darwin"}:
            raise ConfigError(f"the local backend does not run on {platform.system()}")
        runner_binary.find_runner()
        check_parent(self._config.base_dir, PREFIX, runs_programs=True)
        if self.gpus is not None:
            self._gpu_slots = await run_in_thread(partial(_count_gpu_slots, self.gpus), self._limiter)

    async def gpu_sizes(self, sandboxes: int, slots: int | None) -> Mapping[int, int] | None:
        """See `HasGPUs.gpu_sizes`."""
        if self._config.gpus_per_slot is None:
            return None
        size, count = divide_slots(self._gpu_slots, sandboxes, slots, self.name)
        return {size: count}

    async def launch(self, spec: LaunchSpec, labels: Labels) -> LocalSandbox:
        """See `Backend.launch`."""
        await self.check(spec)
        program = runner_binary.path()
        return await launch_in_thread(
            partial(self._launch, spec, labels, program), LocalSandbox.destroy_now, self._limiter
        )

    def _launch(self, spec: LaunchSpec, labels: Labels, program: Path) -> LocalSandbox:
        # Under root, slots have their own uids: they may pass through the directory, but not list it.
        mode = 0o711 if os.geteuid() == 0 else 0o700
        directory = make_directory(self._config.base_dir, PREFIX, labels, mode=mode)
        env = {"PATH": f"{os.path.dirname(sys.executable)}:{SYSTEM_PATH}", "LANG": "C.UTF-8"}
        command = [str(program), "serve", "--base", str(directory.sandbox), "--lease-s", str(spec.lease_s)]
        command += ["--parent", str(os.getpid())]
        try:
            process = start_child(command, directory.log, env)
        except OSError as error:
            directory.remove()
            raise LaunchError(f"the runner cannot be started: {error}") from error
        pid = process.pid
        directory.remember_runner(pid)
        limits = dict.fromkeys(spec.limits.total(), "not enforced")
        return LocalSandbox(f"local-{pid}", process, pid, directory, program, directory.sandbox, limits)

    def _name_of(self, directory: SandboxDirectory, pid: int | None) -> str:
        return directory.path.name if pid is None else f"local-{pid}"

    def _remove(self, directory: SandboxDirectory) -> None:
        remove_groups(directory)
        super()._remove(directory)


def _count_gpu_slots(request: Mapping[str, object]) -> int:
    command = [str(runner_binary.path()), *gpus_command(request)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=ANSWER_TIMEOUT_S, cwd="/", check=True)
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise LaunchError(f"the runner cannot look for GPUs: {error}") from error
    return parse_gpu_slots(answer, LocalBackend.name)
