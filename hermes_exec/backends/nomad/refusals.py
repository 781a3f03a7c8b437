"""What Nomad and its nodes say when there is no box, and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_exec.backends.image_errors import not_fetched
from hermes_exec.backends.nomad.job import asked_for
from hermes_exec.errors import ConfigError, ErrorCause, ExecError, ImageError, LaunchError, QuotaExceeded

REFUSAL = re.compile(
    r"not enabled|not allowed|isn't allowed|[Ii]nvalid|unable to find user|failed to (decode|parse|validate)|[Uu]nknown"
)
"""What a node says of options that can never work there."""
SIZES = {
    "memory": ("MiB of memory", "limits.memory_mb", ("Memory", "MemoryMB")),
    "cpu": ("MHz of processors", "limits.cpus", ("Cpu", "CpuShares")),
    "cores": ("cores", "resources.cores", ("Cpu", "TotalCpuCores")),
    "disk": ("MiB of disk", "resources.disk", ("Disk", "DiskMB")),
}
"""What the scheduler counts: its unit, the option that asks for it, and where a node tells how much it has."""


def unplaced(metrics: Mapping[str, Any], job: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> LaunchError:
    """The error for a job that no node can have, with the scheduler's reasons: QuotaExceeded where that may change.
    `nodes` are those of the cluster, as far as they are known.
    """
    asked: dict[str, int] = asked_for(job)
    lacking: Mapping[str, int] = metrics.get("DimensionExhausted") or {}
    datacenters: Sequence[str] = job["Datacenters"]
    told = [f"{count} filtered by {why}" for why, count in (metrics.get("ConstraintFiltered") or {}).items()]
    for what, count in lacking.items():
        wanted = f"the box asks for {asked[what]} {SIZES[what][0]}" if what in asked else ""
        told.append(f"{count} have no {what} left" + f" ({wanted})" * bool(wanted))
        if wanted and nodes and (most := max(_size(node, what) for node in nodes)) < asked[what]:
            message = f"no node of the Nomad cluster is large enough: {wanted}, and the largest has {most}: set "
            return LaunchError(message + SIZES[what][1], cause=ErrorCause.CONFIG, retryable=False)
    told += [f"{count} filtered as class {why}" for why, count in (metrics.get("ClassFiltered") or {}).items()]
    told += [f"quota exhausted: {what}" for what in metrics.get("QuotaExhausted") or ()]
    anywhere = list(datacenters) == ["*"]
    where = "" if anywhere else f" in the datacenters {', '.join(datacenters)}"
    why = "; ".join(told) or f"none is ready and eligible{where}"
    message = f"no node of the Nomad cluster can have the box, of {metrics.get('NodesEvaluated', 0)}: {why}"
    if metrics.get("NodesExhausted") or metrics.get("QuotaExhausted") or (anywhere and not told):
        return QuotaExceeded(message)
    return LaunchError(message, cause=ErrorCause.CONFIG, retryable=False)


def _size(node: Mapping[str, Any], what: str) -> int:
    """How much of something a node has for tasks."""
    part, name = SIZES[what][2]
    has, kept = ((node.get(key) or {}).get(part) or {} for key in ("NodeResources", "ReservedResources"))
    return int(has.get(name, 0)) - int(kept.get(name, 0))


def failed(image: str, events: list[Mapping[str, Any]]) -> ExecError:
    """The error for a task that ended before its runner was there."""
    failures = [each for each in events if "Fail" in str(each.get("Type"))] or events[-3:]
    said = "; ".join(str(each.get("DisplayMessage")) for each in failures)
    if re.search(r"[Ff]ailed to (pull|find) |reference format|registry specification|image (not|name)", said):
        error = not_fetched(image, said)
        if re.search(r"(^|/)[^:/@]+(:latest)?$", image):
            error.args = (
                f"{error}. Nomad always fetches the tag 'latest': an image that its nodes have needs another",
            )
        return error
    if re.search(r"/bin/sh.*(not found|no such file)", said):
        return ImageError(f"the image {image!r} has no shell, which runner_delivery='bind' goes without: {said}")
    if REFUSAL.search(said):
        return ConfigError(f"the node refuses the box: {said}")
    return LaunchError(f"the box did not start: {said}")
