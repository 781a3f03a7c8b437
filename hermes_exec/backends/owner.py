"""Ownership of sandboxes: labels that name one process of one boot, and checks whether that process still lives."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Literal

from hermes_exec.backends.base import Labels, ReapedSandbox, ReapFilter, SandboxInfo

OwnerState = Literal["alive", "gone", "unknown"]
PREFIX = "hermes-exec."


@cache
def _host_id() -> str:
    try:
        machine = Path("/etc/machine-id").read_text("ascii", "replace").strip()
    except OSError:
        machine = ""
    return f"{socket.gethostname()}:{machine}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is gone or a zombie.

    Raises:
        OSError: If this system does not report it (no /proc).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/stat").exists():
            raise OSError("no /proc here") from None
        return None
    state, *rest = stat.rpartition(b")")[2].split()
    return None if state in {b"Z", b"X"} else int(rest[18])


def process_state(pid: int) -> str:
    """Return the state letter of a process, or "" if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode("ascii")
    except (OSError, IndexError):
        return ""


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process; none if it is gone, or the kernel does not report them."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children += map(int, listed.read_text("ascii").split())
    return children + [below for child in children for below in descendants(child)]


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def own_labels(run_id: str, note: str = "") -> Labels:
    """Return the labels of sandboxes that this process starts for a run."""
    pid = os.getpid()
    try:
        start = process_start(pid) or 0
    except OSError:
        start = 0
    return Labels(run_id, _host_id(), _boot_id(), _pid_namespace(), pid, start, _user(), note)


def owner_state(labels: Labels, *, shared_engine: bool) -> OwnerState:
    """Return whether the owner lives; `unknown` if that cannot be judged from here (another host or pid namespace).

    Another boot of this host is over, unless other hosts share the engine: a cloned host has the same name and machine
    id.
    """
    if labels.host_id != _host_id() or not labels.boot_id or not labels.pid_start:
        return "unknown"
    if labels.boot_id != _boot_id():
        return "unknown" if shared_engine else "gone"
    if labels.pid_namespace != _pid_namespace():
        return "unknown"
    try:
        return "alive" if process_start(labels.pid) == labels.pid_start else "gone"
    except OSError:
        return "unknown"


def reap_reason(which: ReapFilter, labels: Labels, owner: OwnerState, *, ended: bool, left: bool = False) -> str | None:
    """Return why the filter matches a sandbox with these labels, or None.

    Args:
        which: The filter.
        labels: The labels of the sandbox.
        owner: The state of its owner.
        ended: Whether its runner has ended. It is an orphan then, unless its owner lives.
        left: Whether a removal has failed before. It is an orphan then in any case, but only for a retry.
    """
    if left and not which.retry:
        return None
    if which.all:
        return "all sandboxes of this library"
    if which.run_id not in {None, labels.run_id}:
        return None
    if which.orphans:
        if left:
            return "it could not be removed before"
        if owner == "gone":
            return f"its owner, process {labels.pid}, is gone"
        return "it has ended" if ended and owner == "unknown" else None
    return None if which.run_id is None else f"run {which.run_id}"


async def reap_each(
    sandboxes: Iterable[SandboxInfo], which: ReapFilter, end: Callable[[SandboxInfo], Awaitable[object]]
) -> list[ReapedSandbox]:
    """End the sandboxes that match the filter."""
    ended = []
    for info in sandboxes:
        reason = reap_reason(which, info.labels, info.owner, ended=info.ended)
        if reason is not None:
            await end(info)
            ended.append(ReapedSandbox(info.sandbox, info.backend, info.labels.run_id, reason))
    return ended


def to_strings(labels: Labels) -> dict[str, str]:
    """Return labels as a container engine takes them."""
    return {PREFIX + name.replace("_", "-"): str(value) for name, value in asdict(labels).items()}


def from_strings(strings: Mapping[str, str]) -> Labels | None:
    """Return this library's labels among a container's; None if the container is not this library's."""
    values = {field.name: strings.get(PREFIX + field.name.replace("_", "-")) for field in fields(Labels)}
    return _labels(values)


def to_json(labels: Labels) -> str:
    """Return labels as the text of an owner file."""
    return json.dumps(asdict(labels))


def from_json(text: str) -> Labels | None:
    """Return the labels in the text of an owner file; None if the text is invalid."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return from_values(values)


def from_values(values: object) -> Labels | None:
    """Return the labels in an owner file that is already parsed as JSON; None if it is invalid."""
    return _labels(values) if isinstance(values, dict) else None


def _labels(values: Mapping[str, object]) -> Labels | None:
    run_id, host, boot, namespace = (values.get(n) for n in ("run_id", "host_id", "boot_id", "pid_namespace"))
    try:
        pid, start = int(str(values.get("pid"))), int(str(values.get("pid_start")))
    except ValueError:
        return None
    if not (isinstance(run_id, str) and isinstance(host, str) and isinstance(boot, str) and isinstance(namespace, str)):
        return None
    return Labels(run_id, host, boot, namespace, pid, start, *(str(values.get(n) or "") for n in ("user", "note")))
