"""Validation of a sandbox's answers. A sandbox is hostile, so every field is checked."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_exec.channel import RemoteError
from hermes_exec.channel.encoding import from_wire, is_unicode, printable, shorten
from hermes_exec.errors import (
    ConfigError,
    ExecError,
    IsolationError,
    OutputLimitExceeded,
    PostMortem,
    ProtocolError,
    QuotaExceeded,
    SandboxDied,
    SlotBusy,
    SlotClosed,
)
from hermes_exec.results import Isolation, KillReceipt, ProcessInfo, Usage

LEVELS = ("none", "landlock", "uid", "namespaces", "exclusive")
LARGEST = 2**63 - 1
LARGEST_NUMBER = 1e18
PLAIN_ERRORS: Mapping[str, type[ExecError]] = {
    "bad_request": ConfigError,
    "user": ConfigError,
    "isolation": IsolationError,
    "refused": ConfigError,
    "other_root": ConfigError,
}


def remote_failure(error: RemoteError, *, path: str | None = None) -> Exception:
    """Return the exception for an error of docs/protocol.md; `path` is the path as the caller wrote it."""
    if (plain := PLAIN_ERRORS.get(error.kind)) is not None:
        return plain(error.message)
    match error.kind:
        case "os":
            return _os_error(error, path)
        case "timeout":
            return TimeoutError(errno.ETIMEDOUT, error.message, path) if path else TimeoutError(error.message)
        case "too_large":
            return OutputLimitExceeded(f"{path}: {error.message}" if path else error.message)
        case "no_process":
            return ProcessLookupError(errno.ESRCH, error.message)
        case "no_slot" | "slot_closed" | "no_session":
            return SlotClosed(f"the slot was released or reset: {error.message}")
        case "no_checkpoint" | "no_layers" | "busy" | "unclean" | "store_full":
            return _checkpoint_failure(error)
        case "slot_died":
            oom, alone = (error.detail.get(name) is True for name in ("oom", "exclusive"))
            # Only the holder of an exclusive sandbox can kill its slot agent. In a shared one, other slots may have
            # used up the memory.
            death = PostMortem(reason=error.message, oom=oom, suspect="tenant" if alone else "unknown")
            return SandboxDied(f"everything in the slot was ended: {error.message}", post_mortem=death)
        case "limit":
            return ConfigError(f"{error.message}: leave the limit out, or set best_effort_limits=True")
        case "exhausted":
            return ExecError(error.message, retryable=True)
        case "no_gpu":
            return QuotaExceeded(error.message, retryable=True)
        case "stale":
            return ProtocolError(f"the sandbox reports that this request was answered before: {error.message}")
        case "canceled":
            return SlotClosed(f"the call was ended: {error.message}")
        case _:
            return ExecError(f"the runner failed ({error.kind}): {error.message}")


def _checkpoint_failure(error: RemoteError) -> Exception:
    """Return the exception for an error about checkpoints."""
    if error.kind == "store_full":
        advice = "drop checkpoints that are no longer needed, or set a larger checkpoint_disk_mb"
        path = "" if error.path is None else from_wire(error.path, "path")
        return OSError(errno.ENOSPC, f"{error.message}: {advice}", path)
    if error.kind == "busy":
        try:
            commands = [" ".join(texts(entry, "argv")) for entry in items(error.detail, "processes")]
        except ProtocolError:
            commands = []
        return SlotBusy(": ".join(filter(None, (error.message, printable(", ".join(commands), 500)))))
    if error.kind == "no_layers":
        return ConfigError(f"no checkpoint of this slot is possible: {error.message}")
    if error.kind == "no_checkpoint":
        return SlotClosed(f"the checkpoint was dropped: {error.message}")
    return ExecError(f"the slot could not be proven clean: {error.message}")


def _os_error(error: RemoteError, path: str | None) -> OSError:
    name = error.errno or ""
    number = getattr(errno, name, None) if name.startswith("E") else None
    if path is None and error.path is not None:
        path = from_wire(error.path, "path")
    if not isinstance(number, int):
        return OSError(f"{error.message} ({name})" if name else error.message)
    text, message = os.strerror(number), error.message
    if path is not None:  # str(OSError) contains it anyway
        message = message.removeprefix(f"{path}: ").replace(f' "{path}"', "")
    if message and message.casefold() not in {text.casefold(), name.casefold()}:
        text = f"{text} ({message})" if text.casefold() not in message.casefold() else message
    return OSError(number, text, path) if path is not None else OSError(number, text)


def integer(answer: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """Return an integer field. Raises ProtocolError if it is missing, below `least`, or larger than 64 bits."""
    value = answer.get(name)
    if type(value) is not int or not least <= value <= LARGEST:
        raise ProtocolError(f"the sandbox sent {name} = {shorten(value)}")
    return value


def optional_integer(answer: Mapping[str, Any], name: str) -> int | None:
    """Return an integer field that may be null."""
    return None if answer.get(name) is None else integer(answer, name)


def number(answer: Mapping[str, Any], name: str) -> float:
    """Return a number field. Raises ProtocolError for anything else, also for infinity and NaN."""
    value = answer.get(name)
    if (type(value) is float or type(value) is int) and -LARGEST_NUMBER < value < LARGEST_NUMBER:
        return float(value)
    raise ProtocolError(f"the sandbox sent {name} = {shorten(value)}")


def text(answer: Mapping[str, Any], name: str) -> str:
    """Return a text field. Raises ProtocolError for anything else."""
    value = answer.get(name)
    if not isinstance(value, str) or not (value.isascii() or is_unicode(value)):
        raise ProtocolError(f"the sandbox sent {name} = {shorten(value)}")
    return value


def texts(answer: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of byte strings; absent or null is empty."""
    value = answer.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ProtocolError(f"the sandbox sent {name} = {shorten(value)}")
    return tuple(from_wire(item, name) for item in value)


def optional_text(answer: Mapping[str, Any], name: str) -> str | None:
    """Return a string, or None if it is absent, null or of another type."""
    value = answer.get(name)
    return printable(value) if isinstance(value, str) else None


def optional_path(answer: Mapping[str, Any], name: str) -> str | None:
    """Return a byte string that may be null."""
    return None if answer.get(name) is None else from_wire(answer[name], name)


def items(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of objects; absent or null is empty."""
    value = answer.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ProtocolError(f"the sandbox sent {name} of a wrong type")
    return value


def receipt(answer: object) -> KillReceipt:
    """Parse `Receipt` of the wire."""
    if not isinstance(answer, dict):
        raise ProtocolError("the sandbox sent no receipt of a kill")
    return KillReceipt(
        found=integer(answer, "found"),
        killed=integer(answer, "killed"),
        left=integer(answer, "left"),
        rounds=integer(answer, "rounds"),
        handles=texts(answer, "handles"),
        duration_s=number(answer, "duration_s"),
    )


def optional_receipt(answer: object) -> KillReceipt | None:
    """Parse `Receipt` of the wire, or None."""
    return None if answer is None else receipt(answer)


def usage(answer: object) -> Usage:
    """Parse `usage` of `Exit`."""
    if not isinstance(answer, dict):
        raise ProtocolError("the sandbox sent no usage")
    return Usage(number(answer, "user_s"), number(answer, "system_s"), integer(answer, "max_rss_bytes"))


def isolation(answer: object) -> Isolation:
    """Parse `Isolation` of the wire."""
    if not isinstance(answer, dict) or answer.get("level") not in LEVELS:
        raise ProtocolError("the sandbox sent an unknown isolation")
    limits = answer.get("limits") or {}
    if not isinstance(limits, dict):
        raise ProtocolError("the sandbox sent limits of a wrong type")
    return Isolation(
        level=answer["level"],
        filesystem=text(answer, "filesystem"),
        processes=text(answer, "processes"),
        users=text(answer, "users"),
        network=text(answer, "network"),
        limits={printable(name): printable(how) for name, how in limits.items()},
        price_ms=number(answer, "price_ms"),
    )


def process_info(answer: Mapping[str, Any]) -> ProcessInfo:
    """Parse one process of `slot.processes`."""
    return ProcessInfo(
        pid=integer(answer, "pid"),
        argv=texts(answer, "argv"),
        started_at=number(answer, "started_at"),
        rss_bytes=integer(answer, "rss_bytes"),
        request_id=optional_integer(answer, "request_id"),
        state=printable(answer.get("state")),
    )


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The runner's description of a slot when it was created."""

    workspace: str
    home: str
    tmp: str
    uid: int
    gid: int
    user_name: str
    shell: str | None
    session_shell: str | None
    session_keeps: tuple[str, ...]
    isolation: Isolation
    loopback: str | None
    """Whose loopback the slot has: `slot`, `sandbox`, or another owner of the sandbox's network; None if unknown."""

    @property
    def has_own_disk(self) -> bool:
        """Whether a limit of the slot's disk is enforced, so that its files are on a disk of their own."""
        return self.isolation.limits.get("disk_mb", "not enforced") != "not enforced"

    @classmethod
    def parse(cls, answer: dict[str, Any]) -> SlotFacts:
        """Parse the answer to `slot.create`. Raises ProtocolError if a field is missing or has a wrong type."""
        session = answer.get("session")
        session = session if isinstance(session, dict) else {}
        return cls(
            workspace=from_wire(answer.get("workspace"), "workspace"),
            home=from_wire(answer.get("home"), "home"),
            tmp=from_wire(answer.get("tmp"), "tmp"),
            uid=integer(answer, "uid"),
            gid=integer(answer, "gid"),
            user_name=text(answer, "user_name"),
            shell=optional_text(answer, "shell"),
            session_shell=optional_text(session, "shell"),
            session_keeps=texts(session, "keeps"),
            isolation=isolation(answer.get("isolation")),
            loopback=optional_text(answer, "loopback"),
        )
