"""The SSH backend: a sandbox is a runner on another host, in a session and a private directory of its own."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import anyio
import anyio.to_thread

from hermes_exec.backends.base import Labels, LaunchSpec, ReapedSandbox, ReapFilter, SandboxInfo, check_host_sandbox
from hermes_exec.backends.capabilities import advise
from hermes_exec.backends.host_gpus import divide_slots
from hermes_exec.backends.owner import from_values, owner_state, reap_reason
from hermes_exec.backends.ssh.config import SSHConfig
from hermes_exec.backends.ssh.host import Host
from hermes_exec.backends.ssh.hosts import Hosts
from hermes_exec.backends.ssh.sandbox import SSHSandbox
from hermes_exec.backends.threads import launch_in_thread, run_in_thread
from hermes_exec.errors import ExecError

logger = logging.getLogger(__name__)


class SSHBackend:
    """A backend that runs sandboxes on hosts reached by SSH."""

    name = "ssh"
    can_be_exclusive = False
    private_root = True

    def __init__(self, config: SSHConfig) -> None:
        self.readonly_paths = config.readonly_paths
        self.gpus = config.gpu_request
        self._config = config
        self._patience_s = config.connect_timeout_s
        self._hosts = Hosts(Host(config, host) for host in config.hosts)

    async def check(self, spec: LaunchSpec) -> None:
        """See `Backend.check`. One usable host is enough."""
        check_host_sandbox(self.name, spec)
        await self._hosts.ask(Host.prepare, self._patience_s)

    async def gpu_sizes(self, sandboxes: int, slots: int | None) -> Mapping[int, int] | None:
        """See `HasGPUs.gpu_sizes`. A host that is away counts as the largest of the others."""
        if self._config.gpus_per_slot is None:
            return None
        hosts = await self._hosts.ask(Host.prepare, self._patience_s)
        available = {host.name: facts.gpu_slots or 0 for host, facts in hosts.items()}
        sizes: Counter[int] = Counter()
        for host, count in Counter(self._config.place(sandboxes)).items():
            most = available.get(host.name, max(available.values()))
            size, at_once = divide_slots(most, count, host.slots or slots, f"ssh {host.name}")
            sizes[size] += at_once
        return sizes

    async def launch(self, spec: LaunchSpec, labels: Labels) -> SSHSandbox:
        """See `Backend.launch`."""
        check_host_sandbox(self.name, spec)
        limits = dict.fromkeys(spec.limits.total(), "not enforced")

        async def start(host: Host, gone: Callable[[], None]) -> SSHSandbox:
            def make() -> SSHSandbox:
                size = self._size(host, spec)
                return SSHSandbox(host, *host.start(labels, spec.lease_s), limits, size, gone)

            return await launch_in_thread(make, SSHSandbox.destroy_now, host.limiter)

        return await self._hosts.place(start)

    def _size(self, host: Host, spec: LaunchSpec) -> int | None:
        """Return the slots of a sandbox on a host; None for the pool's number."""
        if self._config.gpus_per_slot is None:
            return host.slots
        return min(host.slots or spec.slots, host.prepare().gpu_slots or 1)

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        """See `Backend.reap`."""
        ended: list[ReapedSandbox] = []

        async def end(host: Host, base: str, info: SandboxInfo, reason: str) -> None:
            try:
                if await run_in_thread(partial(host.end, base), host.limiter):
                    ended.append(ReapedSandbox(info.sandbox, self.name, info.labels.run_id, reason))
            except (ExecError, OSError) as error:
                logger.warning("%s could not be ended: %s", info.sandbox, error)

        sandboxes = await self._find_sandboxes()
        async with anyio.create_task_group() as tasks:
            for host, base, info in sandboxes:
                reason = reap_reason(which, info.labels, info.owner, ended=info.ended, left=info.left is not None)
                if reason is not None:
                    tasks.start_soon(end, host, base, info, reason)
        return ended

    async def sandboxes(self) -> list[SandboxInfo]:
        """See `Backend.sandboxes`."""
        return [info for _, _, info in await self._find_sandboxes()]

    async def leftovers(self) -> list[str]:
        """See `HasLeftovers.leftovers`."""
        return advise(await self.sandboxes())

    async def _find_sandboxes(self) -> list[tuple[Host, str, SandboxInfo]]:
        entries = []
        for host, sandboxes in (await self._hosts.ask(Host.sandboxes, self._patience_s)).items():
            for sandbox in sandboxes:
                labels = from_values(sandbox.get("owner"))
                if labels is None:
                    continue
                base, state = str(sandbox["base"]), str(sandbox["state"])
                info = SandboxInfo(
                    sandbox=host.sandbox_name(base),
                    backend=self.name,
                    labels=labels,
                    owner=owner_state(labels, shared_engine=True),
                    state=state,
                    created_at=sandbox.get("created_at"),
                    ended=state == "ended",
                    host=host.name,
                    left="; ".join(map(str, sandbox.get("left") or ())) or None,
                )
                entries.append((host, base, info))
        return entries

    async def aclose(self) -> None:
        """Close the connections."""
        async with anyio.create_task_group() as tasks:
            for state in self._hosts.states:
                tasks.start_soon(anyio.to_thread.run_sync, state.host.close)
