"""Placement of a job: the node that the scheduler finds for it, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from hermes_exec.backends.nomad.cluster import Cluster
from hermes_exec.backends.nomad.job import resource_request
from hermes_exec.errors import ErrorCause, ExecError, LaunchError, QuotaExceeded

if TYPE_CHECKING:
    from nomad import Nomad

POLL_S = 0.02


class NodeResource(NamedTuple):
    """A resource that the scheduler counts: its unit, the option that requests it, and where a node lists its
    amount.
    """

    unit: str
    option: str
    part: str
    field: str

    def of(self, node: Mapping[str, Any]) -> int:
        """Return how much of it a node has for tasks."""
        has, reserved = ((node.get(key) or {}).get(self.part) or {} for key in ("NodeResources", "ReservedResources"))
        return int(has.get(self.field, 0)) - int(reserved.get(self.field, 0))


RESOURCES = {
    "memory": NodeResource("MiB of memory", "limits.memory_mb", "Memory", "MemoryMB"),
    "cpu": NodeResource("MHz of processors", "limits.cpus", "Cpu", "CpuShares"),
    "cores": NodeResource("cores", "resources.cores", "Cpu", "TotalCpuCores"),
    "disk": NodeResource("MiB of disk", "resources.disk", "Disk", "DiskMB"),
}


def nodes_of(client: Nomad) -> list[Mapping[str, Any]]:
    """Return all nodes of the cluster with their resources."""
    nodes: list[Mapping[str, Any]] = client.nodes.request(params={"resources": "true"}, method="get").json()
    return nodes


async def wait_for_allocation(cluster: Cluster, evaluation: str, job: Mapping[str, Any]) -> str:
    """Wait until the scheduler has found a node for a job, and return the id of the allocation.

    Raises:
        LaunchError: If no node can have it, now (QuotaExceeded) or ever.
    """
    while True:
        info: Mapping[str, Any] = await cluster.call(lambda client: client.evaluation.get_evaluation(evaluation))
        for metrics in (info.get("FailedTGAllocs") or {}).values():
            nodes = await _list_nodes(cluster) if metrics.get("DimensionExhausted") else []
            raise placement_error(metrics, job, nodes)
        if info.get("Status") in {"failed", "canceled"}:
            raise LaunchError(f"Nomad did not place the sandbox: {info.get('StatusDescription')}")
        allocations = await cluster.call(lambda client: client.evaluation.get_allocations(evaluation))
        if allocations:
            return str(allocations[0]["ID"])
        await anyio.sleep(POLL_S)


async def _list_nodes(cluster: Cluster) -> list[Mapping[str, Any]]:
    """Return the nodes of the cluster; none if the token lacks the further right for it."""
    try:
        return await cluster.run(partial(cluster.ask_now, nodes_of))
    except ExecError:
        return []


def placement_error(
    metrics: Mapping[str, Any], job: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> LaunchError:
    """Return the error for a job that no node can have, with the scheduler's reasons: QuotaExceeded if that may change.

    `nodes` are the known nodes of the cluster.
    """
    requested = resource_request(job)
    reasons = [f"{count} filtered by {why}" for why, count in (metrics.get("ConstraintFiltered") or {}).items()]
    for name, count in (metrics.get("DimensionExhausted") or {}).items():
        if name not in requested:
            reasons.append(f"{count} have no {name} left")
            continue
        resource = RESOURCES[name]
        wanted = f"the sandbox asks for {requested[name]} {resource.unit}"
        most = max(map(resource.of, nodes), default=None)
        if most is not None and most < requested[name]:
            return _never(
                f"no node of the Nomad cluster is large enough: {wanted}, and the largest has {most}: set "
                f"{resource.option}"
            )
        reasons.append(f"{count} have no {name} left ({wanted})")
    reasons += [f"{count} filtered as class {why}" for why, count in (metrics.get("ClassFiltered") or {}).items()]
    reasons += [f"quota exhausted: {name}" for name in metrics.get("QuotaExhausted") or ()]
    anywhere = list(job["Datacenters"]) == ["*"]
    may_change = metrics.get("NodesExhausted") or metrics.get("QuotaExhausted") or (anywhere and not reasons)
    if not reasons:
        where = "" if anywhere else f" in the datacenters {', '.join(job['Datacenters'])}"
        reasons = [f"none is ready and eligible{where}"]
    message = f"no node of the Nomad cluster can have the sandbox, of {metrics.get('NodesEvaluated', 0)}: "
    message += "; ".join(reasons)
    return QuotaExceeded(message) if may_change else _never(message)


def _never(message: str) -> LaunchError:
    return LaunchError(message, cause=ErrorCause.CONFIG, retryable=False)
