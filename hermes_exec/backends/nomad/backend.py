"""The Nomad backend: a sandbox is a job of its own, and Nomad's exec is only a pipe to its runner."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hermes_exec.backends.base import Labels, LaunchSpec, ReapedSandbox, ReapFilter, SandboxInfo
from hermes_exec.backends.engine_errors import end_with_retries
from hermes_exec.backends.nomad.cluster import PREFIX, Cluster
from hermes_exec.backends.nomad.config import NomadConfig
from hermes_exec.backends.nomad.delivery import receive_command
from hermes_exec.backends.nomad.errors import task_error
from hermes_exec.backends.nomad.job import (
    IMAGE,
    check_options,
    check_own_roots,
    hides_directories,
    image_of,
    job_specification,
    limit_enforcement,
)
from hermes_exec.backends.nomad.placement import nodes_of, wait_for_allocation
from hermes_exec.backends.nomad.sandbox import NomadSandbox, PlacedJob, events_of, purge, send_signal, state_of
from hermes_exec.backends.owner import from_strings, owner_state, reap_each
from hermes_exec.backends.runner_binary import find_runner
from hermes_exec.backends.singularity.errors import RefusedError, start_error
from hermes_exec.errors import ConfigError, ExecError, IsolationError, LaunchError, QuotaExceeded
from hermes_exec.results import PullProgress

if TYPE_CHECKING:
    from nomad import Nomad

logger = logging.getLogger(__name__)
POLL_S, MOST_POLL_S = 0.02, 0.25
NS_PER_S = 10**9
OPEN = (
    "this cluster has no ACLs: each task in it can do everything in it, as the root of its nodes too. Turn them on "
    "(acl { enabled = true }), or set allow_open_api=True"
)
REACHABLE = (
    "with this docker runtime, root in an exclusive slot reaches the node's directories of its task: make sure "
    "that other users of the nodes cannot enter Nomad's data_dir (mode 0700)"
)
STREAM_ERRORS = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class NomadBackend:
    """A backend that runs sandboxes as jobs of one cluster."""

    name = "nomad"
    can_be_exclusive = True
    private_root = False
    readonly_paths: tuple[str, ...] = ()

    def __init__(self, config: NomadConfig) -> None:
        self._config = config
        self._cluster = Cluster(config)
        self._open_api: bool | None = None
        self._starting = anyio.Lock()
        self._purged = not config.purge_on_start

    async def check(self, spec: LaunchSpec) -> None:
        """See `Backend.check`."""
        check_options(self._config, spec)
        if await self._is_open() and spec.min_isolation != "none" and not self._config.allow_open_api:
            raise IsolationError(f"min_isolation={spec.min_isolation!r} is impossible: {OPEN}")
        check_own_roots(self._config, spec)

    async def remarks(self) -> list[str]:
        """See `HasRemarks.remarks`."""
        remarks = [OPEN] if await self._is_open() else []
        if self._config.driver == "docker" and not hides_directories(self._config):
            remarks.append(REACHABLE)
        return remarks

    async def _is_open(self) -> bool:
        if self._open_api is None:
            self._open_api = await self._cluster.run(self._cluster.is_open)
        return self._open_api

    async def launch(self, spec: LaunchSpec, labels: Labels) -> NomadSandbox:
        """See `Backend.launch`."""
        await self.check(spec)
        await self._purge_others(labels)
        # The name is chosen before the request: the job can be ended by it even if the answer is lost.
        name = f"{PREFIX}{secrets.token_hex(8)}"
        wanted = job_specification(self._config, spec, labels, name, find_runner("linux"), await self._mhz(spec))
        gone = partial(purge, name=name)
        try:
            registered: Mapping[str, Any] = await self._cluster.make(
                lambda client: client.job.register_job(name, wanted), gone
            )
            allocation = await wait_for_allocation(self._cluster, str(registered["EvalID"]), wanted["Job"])
            workdir = await self._wait_for_runner(allocation, spec)
        except BaseException:
            with anyio.CancelScope(shield=True):
                failure = await end_with_retries(partial(self._cluster.call, gone))
            if failure is not None:
                logger.warning("the job %s could not be ended, its lease will end it: %s", name, failure)
            raise
        limits = limit_enforcement(self._config, spec)
        return NomadSandbox(self._config, self._cluster, PlacedJob(name, allocation, workdir, limits, spec.exclusive))

    async def _purge_others(self, labels: Labels) -> None:
        async with self._starting:
            if not self._purged:
                for info in await self.sandboxes():
                    if info.labels.run_id == labels.run_id and info.labels != labels and info.owner != "alive":
                        await self._cluster.call(partial(purge, name=info.sandbox))
                self._purged = True

    async def _mhz(self, spec: LaunchSpec) -> int | None:
        """Return a limit of processors in MHz of the slowest node, because Nomad counts clock rates."""
        if spec.limits.cpus is None:
            return None
        nodes = await self._cluster.call(nodes_of)
        cpus = [node["NodeResources"]["Cpu"] for node in nodes if node.get("Status") == "ready"]
        per_core: list[float] = [cpu["CpuShares"] / cpu["TotalCpuCores"] for cpu in cpus if cpu.get("TotalCpuCores")]
        if not per_core:
            raise QuotaExceeded("no node of the Nomad cluster is ready")
        return max(1, math.ceil(spec.limits.cpus * min(per_core)))

    async def _wait_for_runner(self, allocation: str, spec: LaunchSpec) -> str:
        """Wait until the runner is in the sandbox, and return the working directory of the image.

        A node whose exec is used while a task starts may keep an outdated state (AllocState in Nomad's
        client/allocrunner) until the task has an event. A signal without effect is such an event.
        """
        pause_s, overlooked = POLL_S, False
        while True:
            try:
                if overlooked:
                    await self._cluster.call(partial(send_signal, allocation=allocation, name="SIGCONT"))
                return await self._deliver_runner(allocation)
            except (LaunchError, *STREAM_ERRORS) as error:
                refusal = str(error)
                if "Permission denied" in refusal:
                    raise self._cluster.explain(refusal) from error
            info: Mapping[str, Any] = await self._cluster.call(lambda c: c.allocation.get_allocation(allocation))
            events = events_of(info)
            if state_of(info, exclusive=False).state == "dead":
                if self._config.driver == "singularity" and (log := await self._cluster.log_tail(allocation)):
                    why = start_error(log)
                    raise why.error if isinstance(why, RefusedError) else why
                raise task_error(image_of(self._config, spec), events)
            news = str(events[-1].get("DisplayMessage", "")) if events else ""
            if spec.on_progress is not None and "ownloading image" in news:
                spec.on_progress(PullProgress(image_of(self._config, spec), news))
            overlooked = "not started yet" in refusal and info.get("ClientStatus") == "running"
            await anyio.sleep(pause_s)
            pause_s = min(MOST_POLL_S, pause_s * 1.2)

    async def _deliver_runner(self, allocation: str) -> str:
        stream = await self._cluster.open(allocation, receive_command(self._config), frames=False)
        output = b""
        try:
            while b"\n" not in output:
                output += await stream.receive()
            runner = find_runner("linux")
            if self._config.runner_delivery == "exec":
                runner = find_runner("linux", output.decode("utf-8", "replace").removeprefix("for ").strip())
                data = await anyio.to_thread.run_sync(runner.path.read_bytes)
                await stream.send(b"%d\n" % len(data) + data)
                output = b""
                while b"\n" not in output:
                    output += await stream.receive()
            answer = json.loads(output)
            if answer["sha256"] != runner.sha256:
                raise ConfigError(f"runner_source is not the runner of this installation: {answer['sha256']}")
            return str(answer["workdir"])
        except (ValueError, LookupError) as error:
            if isinstance(error, ExecError):
                raise
            raise LaunchError(
                f"the runner did not arrive in the sandbox: {output[:500].decode('utf-8', 'replace')}"
            ) from error
        finally:
            stream.close_now()

    async def reap(self, which: ReapFilter) -> list[ReapedSandbox]:
        """See `Backend.reap`."""
        return await reap_each(
            await self.sandboxes(), which, lambda info: self._cluster.call(partial(purge, name=info.sandbox))
        )

    async def sandboxes(self) -> list[SandboxInfo]:
        """See `Backend.sandboxes`."""
        return await self._cluster.call(self._list_jobs)

    def _list_jobs(self, client: Nomad) -> list[SandboxInfo]:
        sandboxes = []
        for each in client.jobs.get_jobs(prefix=PREFIX, meta=True):
            meta: Mapping[str, str] = each.get("Meta") or {}
            labels = from_strings(meta)
            if labels is None:
                continue
            state = str(each.get("Status"))
            info = SandboxInfo(
                sandbox=each["ID"],
                backend=self.name,
                labels=labels,
                owner=owner_state(labels, shared_engine=True),
                state=state,
                image=meta.get(IMAGE),
                created_at=each.get("SubmitTime", 0) / NS_PER_S,
                ended=state == "dead",
            )
            sandboxes.append(info)
        return sandboxes

    async def aclose(self) -> None:
        """Close the connections. Sandboxes and their streams have their own."""
        self._cluster.close()
