"""What calls give back: frozen values, with units in their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hermes_exec.errors import CommandFailed

IsolationLevel = Literal["none", "uid", "namespaces", "box"]
LEVELS: tuple[IsolationLevel, ...] = ("none", "uid", "namespaces", "box")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command used, its descendants that it waited for included."""

    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KillReceipt:
    """What ending a process tree found and what it left; `left` > 0 quarantines the slot.

    `handles` names the means that were used (`group`, `gid`, `pid namespace`, …).
    """

    found: int = 0
    killed: int = 0
    left: int = 0
    rounds: int = 0
    handles: tuple[str, ...] = ()
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one command. A failure, a timeout or a missing program is such a result, never an exception.

    `stdout`, `stderr` and `output` (both in arrival order) are UTF-8 with replacement and hold one line at the cut where
    bytes were dropped; `stdout_bytes` and `stderr_bytes` hold only real bytes. `exit_code` of a signalled process is
    128 + signal; 127 is a missing program, 126 one that could not be executed. `spill_path` is the file in the slot with
    the whole stream when it was over the limit.
    """

    stdout: str
    stderr: str
    output: str
    stdout_bytes: bytes
    stderr_bytes: bytes
    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    duration_s: float = 0.0
    usage: Usage = field(default_factory=Usage)
    stdout_total_bytes: int = 0
    stderr_total_bytes: int = 0
    truncated: bool = False
    spill_path: str | None = None
    killed: KillReceipt | None = None
    request_id: int = 0

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> RunResult:
        """The result itself, or CommandFailed when the command did not succeed."""
        if self.ok:
            return self
        how = "timed out" if self.timed_out else f"failed with exit code {self.exit_code}"
        tail = self.stderr.strip()[-500:] or self.stdout.strip()[-500:]
        raise CommandFailed(f"the command {how}" + (f": {tail}" if tail else ""), self)


@dataclass(frozen=True, slots=True)
class Isolation:
    """What holds between a slot and the rest, as probed in its box, in short plain statements."""

    level: IsolationLevel
    filesystem: str = ""
    processes: str = ""
    users: str = ""
    network: str = ""
    limits: dict[str, str] = field(default_factory=dict)
    price_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What is known of a dead box. `suspect`: who ended it, decided only from outside the slot."""

    exit_code: int | None = None
    oom: bool = False
    reason: str = ""
    log_tail: str = ""
    suspect: Literal["tenant", "outside", "unknown"] = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One living process of a slot; `request_id` is the request that started it, None when nothing claims it."""

    pid: int
    argv: tuple[str, ...]
    started_at: float
    rss_bytes: int
    request_id: int | None = None
    state: str = ""


FileType = Literal["file", "dir", "link", "fifo", "socket", "char", "block"]


@dataclass(frozen=True, slots=True)
class FileStat:
    """What a file is; `mode` holds the permission bits, `mtime` is in seconds since the epoch, `target` a link's text."""

    path: str
    name: str
    type: FileType
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    links: int
    target: str | None = None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type == "dir"

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.type == "file"


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """One matching line; `line` and `column` count from 1."""

    path: str
    line: int
    column: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A file with matches, or a file that a name search found."""

    path: str
    count: int
    mtime: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Matches within the limit, and the true totals whatever the limit was."""

    matches: tuple[SearchMatch, ...]
    files: tuple[SearchedFile, ...]
    total: int
    total_files: int
    truncated: bool
    binary_skipped: int = 0
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileWritten:
    """What a write did."""

    written: int
    created: bool
    dirs_created: bool


@dataclass(frozen=True, slots=True)
class TreeCopied:
    """What an upload or download moved; `refused` names entries that were left out, with the reason."""

    files: int
    bytes: int
    refused: tuple[str, ...] = ()
