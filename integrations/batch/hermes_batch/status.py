"""`status.json`: the progress of a run, for its own display and for other programs."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_batch.index import TRAJECTORIES
from hermes_exec.errors import ConfigError
from hermes_exec.file_lock import is_locked
from hermes_exec.private_files import open_private

STATUS = "status.json"
WRITE_INTERVAL_S = 10.0
_STALE_AFTER_S = 30.0


class EndpointFacts(BaseModel):
    """The state of the model's endpoint (`hermes_agent.models.endpoint.EndpointStatus`)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    in_flight: int = 0
    waiting: int = 0
    rate: float | None = None
    away_s: float | None = None
    reason: str = ""
    parts: dict[str, EndpointFacts] = Field(default_factory=dict)
    """The state of each endpoint by its URL, if there are several."""


class RunStatus(BaseModel):
    """The progress of a run.

    Of `total` samples of prompts, `records` have a record, by `outcomes`: `solved`, `unsolved`, `unscored` and
    `unchecked`. `seconds` and the sums count all invocations. `rate` is the number of records a second in the last
    time, and `left_s` how long the rest takes at this rate (None: unknown). `workers` counts the workers by what they
    do (`hermes_agent.rollout_result.Stage`), `sandboxes` the sandboxes of the pool by their state, and `hosts` by their
    host, if the backend has several. `ended` means that the run has ended, and `stopped` is the reason why it ended
    early.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    pid: int = Field(default_factory=os.getpid)
    host: str = Field(default_factory=socket.gethostname)
    written: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    total: int
    records: int
    outcomes: dict[str, int] = Field(default_factory=dict)
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    rate: float | None = None
    left_s: float | None = None
    workers: dict[str, int] = Field(default_factory=dict)
    sandboxes: dict[str, int] = Field(default_factory=dict)
    hosts: dict[str, int] = Field(default_factory=dict)
    endpoint: EndpointFacts | None = None
    ended: bool = False
    stopped: str | None = None

    @property
    def age_s(self) -> float:
        """The seconds since it was written, by the clock of this host."""
        try:
            age = datetime.now(UTC) - datetime.fromisoformat(self.written)
        except (ValueError, TypeError):
            age = timedelta.max
        return age.total_seconds()


def count_hosts(sandboxes: Mapping[str, object]) -> dict[str, int]:
    """Return the number of sandboxes on each host. Names of sandboxes begin with a host (`HOST:NAME`) if the backend
    has hosts.
    """
    hosts: dict[str, int] = {}
    for name in sandboxes:
        host = name.rpartition(":")[0]
        if host:
            hosts[host] = hosts.get(host, 0) + 1
    return hosts


def write_status(out: Path, status: RunStatus) -> None:
    """Write `status.json`, atomically.

    Raises:
        OSError: If it cannot be written.
    """
    aside = out / f".{STATUS}.new"
    with open(aside, "w", encoding="utf-8", errors="replace", opener=open_private) as file:
        file.write(status.model_dump_json(indent=2) + "\n")
    aside.replace(out / STATUS)


def read_status(out: Path) -> RunStatus:
    """Return the status of a run.

    Raises:
        ConfigError: If there is none, or it is not one.
    """
    try:
        return RunStatus.model_validate_json((out / STATUS).read_bytes())
    except OSError as error:
        if error.errno == errno.ENOENT and (out / TRAJECTORIES).exists():
            why = f"{out} has no {STATUS}: it is a run of an earlier version"
            raise ConfigError(f"{why}; see its results: hermes-exec batch show {out}") from error
        raise ConfigError(f"{out} has no run: {STATUS}: {error.strerror or error}") from error
    except ValidationError as error:
        raise ConfigError(f"{out / STATUS} is not the status of a run: {error.errors()[0]['msg']}") from error


def is_working(out: Path, status: RunStatus) -> bool:
    """Return whether the process of a run still works on it: by its id on its own host, and by the lock of its file
    if its status has not been written for a while.
    """
    if status.ended:
        return False
    if status.host == socket.gethostname() and not _is_process(status.pid):
        return False
    if status.age_s < _STALE_AFTER_S:
        return True
    return is_locked(out / TRAJECTORIES)


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
