"""One job: streams into its task, its state as the cluster reports it, its end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from hermes_exec.backends.base import OWN_EXIT_CODES, SandboxStatus
from hermes_exec.backends.engine_errors import open_error
from hermes_exec.backends.nomad.cluster import TASK, Cluster
from hermes_exec.backends.nomad.delivery import runner_command
from hermes_exec.backends.nomad.errors import NotFound
from hermes_exec.errors import BackendUnavailable, ExecError, PostMortem, Suspect

if TYPE_CHECKING:
    from nomad import Nomad

    from hermes_exec.backends.nomad.config import NomadConfig
    from hermes_exec.backends.nomad.exec_stream import ExecStream

DESTROY_TIMEOUT_S = 30.0
"""Longest wait for a cluster to end a job."""


class PlacedJob(NamedTuple):
    """Facts of a job from its launch."""

    name: str
    allocation: str
    workdir: str
    limits: Mapping[str, str]
    exclusive: bool


class NomadSandbox:
    """See `Sandbox`, `MayBeDrained` and `Signalable`. It outlives streams and restarts of agents: its lease and
    `destroy` end it.
    """

    user: str | None = None

    def __init__(self, config: NomadConfig, cluster: Cluster, job: PlacedJob) -> None:
        self._config = config
        self._cluster = cluster
        self._job = job
        self.id = job.name
        self.workdir = job.workdir
        self.limits = job.limits

    async def open(self, argv: Sequence[str]) -> ExecStream:
        """See `Sandbox.open`."""
        try:
            return await self._cluster.open(self._job.allocation, runner_command(self._config, *argv, base=True))
        except ExecError as error:
            raise await open_error(self, "job", error) from error

    async def status(self) -> SandboxStatus:
        """See `Sandbox.status`."""
        try:
            allocation = await self._cluster.call(lambda client: client.allocation.get_allocation(self._job.allocation))
            status = state_of(allocation, exclusive=self._job.exclusive)
            if status.post_mortem is None:
                return status
            tail = await self._cluster.log_tail(self._job.allocation)
            return SandboxStatus("dead", replace(status.post_mortem, log_tail=tail))
        except NotFound:
            return SandboxStatus("dead", PostMortem("the job was removed", suspect="outside"))
        except ExecError as error:
            return SandboxStatus("unknown", detail=str(error))

    async def is_draining(self) -> bool:
        """See `MayBeDrained.is_draining`. A token without the right to read nodes notices only the end of the drain."""
        try:
            allocation = await self._cluster.call(lambda client: client.allocation.get_allocation(self._job.allocation))
            if allocation.get("DesiredStatus") != "run" or (allocation.get("DesiredTransition") or {}).get("Migrate"):
                return True
            ask = partial(self._cluster.ask_now, lambda client: client.node.get_node(allocation["NodeID"]))
            return bool((await self._cluster.run(ask)).get("DrainStrategy"))
        except ExecError:
            return False

    async def destroy(self) -> None:
        """See `Sandbox.destroy`. A cancelled caller waits for it, but not for a silent cluster."""
        with anyio.move_on_after(DESTROY_TIMEOUT_S, shield=True) as scope:
            await self._cluster.call(self._purge)
        if scope.cancelled_caught:
            raise BackendUnavailable("Nomad did not end the job in time")

    def destroy_now(self) -> None:
        """See `Sandbox.destroy_now`."""
        with contextlib.suppress(ExecError):
            self._cluster.call_now(self._purge)

    def _purge(self, client: Nomad) -> None:
        purge(client, self.id, remove=self._config.purge_on_shutdown)

    def signal_now(self, number: int) -> None:
        """See `Signalable.signal_now`."""
        name, allocation = signal.Signals(number).name, self._job.allocation
        self._cluster.call_now(lambda client: send_signal(client, allocation, name))


def send_signal(client: Nomad, allocation: str, name: str) -> None:
    """Send a signal to the main process of a task."""
    client.client.allocation.signal_allocation(allocation, name, TASK)


def purge(client: Nomad, name: str, *, remove: bool = True) -> None:
    """End a job and remove it. Does nothing if it is gone."""
    from nomad.api.exceptions import BaseNomadException, URLNotFoundNomadException

    try:
        client.job.deregister_job(name, purge=remove)
    except URLNotFoundNomadException:
        return
    except BaseNomadException as error:
        if "job not found" not in str(getattr(error.nomad_resp, "text", "")):  # another program was first
            raise


def state_of(allocation: Mapping[str, Any], *, exclusive: bool) -> SandboxStatus:
    """Return the state of a sandbox from its allocation."""
    state = str(allocation.get("ClientStatus"))
    events = events_of(allocation)
    if state not in {"complete", "failed", "lost"}:
        if [each.get("Type") for each in events].count("Started") > 1:
            return SandboxStatus("dead", PostMortem("its task was restarted", suspect="outside"))
        # `unknown`: its node is away, and may come back.
        return SandboxStatus("unknown" if state == "unknown" else "alive", detail=f"Nomad reports {state}")
    ends = [each.get("Details") or {} for each in events if each.get("Type") == "Terminated"]
    details: Mapping[str, Any] = ends[-1] if ends else {}
    oom, code = details.get("oom_killed") == "true", details.get("exit_code")
    exit_code = None if code is None else int(code)
    messages = [each["DisplayMessage"] for each in events if each.get("DisplayMessage")]
    reason = f"the job is {state}: {messages[-1] if messages else allocation.get('ClientDescription')}"
    return SandboxStatus("dead", PostMortem(reason, exit_code, oom, suspect=_suspect(exit_code, oom, exclusive)))


def _suspect(code: int | None, oom: bool, exclusive: bool) -> Suspect:
    if oom:
        return "tenant" if exclusive else "unknown"
    # PID 1 cannot be killed by SIGKILL from inside its own namespace; without a code, the cluster ended it.
    if code in {None, 137}:
        return "outside"
    return "tenant" if exclusive and code not in OWN_EXIT_CODES else "unknown"


def events_of(allocation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the events of the task, the oldest first."""
    task: Mapping[str, Any] = (allocation.get("TaskStates") or {}).get(TASK) or {}
    return list(task.get("Events") or ())
