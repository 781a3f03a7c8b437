"""The SSH backend: a box is a runner on another host, in a session and a private directory of its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from hermes_exec.backends.base import Labels, LaunchSpec, Reaped, ReapFilter, SandboxInfo, check_host_box
from hermes_exec.backends.owner import from_values, owner_state, reap_reason
from hermes_exec.backends.ssh.config import SSHConfig
from hermes_exec.backends.ssh.host import Host
from hermes_exec.backends.ssh.sandbox import SSHSandbox
from hermes_exec.backends.threads import in_thread, launch_in_thread

MAX_CALLS = 16
"""Calls that may be under way at once; each occupies a thread and a session of the connection."""


class SSHBackend:
    """Runs boxes on hosts that SSH reaches."""

    name = "ssh"
    whole_box = False
    private_root = True

    def __init__(self, config: SSHConfig) -> None:
        self.readonly_paths = config.readonly_paths
        self._config = config
        self._hosts = [Host(config, host) for host in config.hosts]
        self._turns = itertools.cycle(self._hosts)
        self._limiter = anyio.CapacityLimiter(MAX_CALLS)

    async def check(self, spec: LaunchSpec) -> None:
        """See ``Backend.check``."""
        check_host_box(self.name, spec)
        await in_thread(self._hosts[0].ready, self._limiter)

    async def launch(self, spec: LaunchSpec, labels: Labels) -> SSHSandbox:
        """See ``Backend.launch``: the hosts take turns."""
        check_host_box(self.name, spec)
        host = next(self._turns)

        def make() -> SSHSandbox:
            base = host.start(labels, spec.lease_s)
            return SSHSandbox(host, base, dict.fromkeys(spec.limits.box(), "not enforced"), self._limiter)

        return await launch_in_thread(make, SSHSandbox.destroy_now, self._limiter)

    async def reap(self, which: ReapFilter) -> list[Reaped]:
        """See ``Backend.reap``."""
        ended = []
        for host, base, info in await self._found():
            reason = reap_reason(which, info.labels, info.owner, ended=info.ended)
            if reason is not None:
                await in_thread(partial(host.end, base), self._limiter)
                ended.append(Reaped(info.sandbox, self.name, info.labels.run_id, reason))
        return ended

    async def sandboxes(self) -> list[SandboxInfo]:
        """See ``Backend.sandboxes``."""
        return [info for _, _, info in await self._found()]

    async def _found(self) -> list[tuple[Host, str, SandboxInfo]]:
        found = []
        for host in self._hosts:
            boxes: list[Mapping[str, Any]] = await in_thread(host.boxes, self._limiter)
            for box in boxes:
                labels = from_values(box.get("owner"))
                if labels is not None:
                    base, state = str(box["base"]), str(box["state"])
                    owner, created = owner_state(labels, shared_engine=True), box.get("created_at")
                    info = SandboxInfo(
                        host.box_name(base), self.name, labels, owner, state, None, created, state == "ended"
                    )
                    found.append((host, base, info))
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        for host in self._hosts:
            await anyio.to_thread.run_sync(host.close)
