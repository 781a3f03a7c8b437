"""Values that calls give back: frozen dataclasses, sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hermes_exec.errors import CommandFailed, PostMortem

IsolationLevel = Literal["none", "uid", "namespaces", "exclusive"]
"""The levels of isolation, lowest first: a floor is met by its own level and every later one."""
SlotRoot = Literal["own", "shared"]
"""Whether a slot has a root of its own over the image, or that of its sandbox."""

FileType = Literal["file", "dir", "link", "fifo", "socket", "char", "block"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command used, its waited-for children included.

    ``max_rss_bytes`` is the largest resident size of any one of them. It is never below that of the slot's agent (about
    7 MiB, more shortly after a listing of very many files): on Linux a child starts with its parent's peak.
    """

    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KillReceipt:
    """What was found and ended when a process tree or a slot was killed. ``left`` above 0 quarantines the slot.

    ``handles`` names the means that were used (``pid namespace``, ``cgroup``, ``gid``, ``process group``, …).
    """

    found: int = 0
    killed: int = 0
    left: int = 0
    rounds: int = 0
    handles: tuple[str, ...] = ()
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a command did. A failure, a timeout and an out-of-memory kill are results, not exceptions.

    ``stdout_bytes``, ``stderr_bytes`` and ``output_bytes`` hold only bytes that the command wrote, at most
    ``output_limit_bytes`` each; ``stdout_total_bytes`` and ``stderr_total_bytes`` count all that it wrote. Where the
    middle was dropped, ``*_cut_at`` is the offset of the gap in the kept bytes and ``*_dropped_bytes`` its size.
    ``exit_code`` is 128 + ``signal`` for a signalled command, 127 for a missing program and 126 for one that cannot be
    executed (``reason`` says why).

    ``oom_killed``: memory ran out, and a process of the command was ended for it: the command itself (exit code 137),
    or a part of it, such as one side of a pipeline, whatever the exit code is then. A part is inferred when the
    kernel's count of such kills rose while the command ran: for a command that ran alone in a slot with a memory limit
    or a sandbox of its own, else for one with a process of more than half of the limit. The kernel does not say which
    process it was: exit code 137 for another reason, such as ``timeout -s KILL``, is taken for such a kill when another
    command, or a slot that shares the count, lost a process to one meanwhile.

    ``state_lost`` is None outside of sessions, and where the session goes on from the state that the command left; else
    it says why it does not: the shell was killed or replaced (``exec``), or could not save its state.
    """

    exit_code: int
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    output_bytes: bytes = b""
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    duration_s: float = 0.0
    usage: Usage = field(default_factory=Usage)
    stdout_total_bytes: int = 0
    stderr_total_bytes: int = 0
    stdout_cut_at: int = 0
    stderr_cut_at: int = 0
    output_cut_at: int = 0
    output_dropped_bytes: int = 0
    spill_path: str | None = None
    stderr_spill_path: str | None = None
    killed: KillReceipt | None = None
    request_id: int | None = None
    reason: str | None = None
    state_lost: str | None = None

    def __repr__(self) -> str:
        fields: dict[str, object] = {"exit_code": self.exit_code}
        if data := self.output_bytes or self.stdout_bytes or self.stderr_bytes:
            fields["output"] = first_lines(data[:1024].decode("utf-8", "replace"))
        if self.killed is not None and self.killed.left:
            fields["killed"] = self.killed
        return describe_result(self, *UNUSUAL, **fields)

    @property
    def stdout(self) -> str:
        """Standard output as UTF-8, bytes that are not replaced by U+FFFD, one line at the cut where bytes were
        dropped.
        """
        return as_text(self.stdout_bytes, self.stdout_cut_at, self.stdout_dropped_bytes)

    @property
    def stderr(self) -> str:
        """Standard error, in the form of ``stdout``."""
        return as_text(self.stderr_bytes, self.stderr_cut_at, self.stderr_dropped_bytes)

    @property
    def output(self) -> str:
        """Both streams in order of arrival, as far as two pipes tell it; exact with ``merge_stderr``."""
        return as_text(self.output_bytes, self.output_cut_at, self.output_dropped_bytes)

    @property
    def stdout_dropped_bytes(self) -> int:
        """How many bytes of standard output are not in ``stdout_bytes``."""
        return self.stdout_total_bytes - len(self.stdout_bytes)

    @property
    def stderr_dropped_bytes(self) -> int:
        """How many bytes of standard error are not in ``stderr_bytes``."""
        return self.stderr_total_bytes - len(self.stderr_bytes)

    @property
    def truncated(self) -> bool:
        """Whether bytes of any view were dropped."""
        return self.stdout_dropped_bytes > 0 or self.stderr_dropped_bytes > 0 or self.output_dropped_bytes > 0

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> RunResult:
        """Return the result if the command succeeded.

        Raises:
            CommandFailed: it did not.
        """
        if not self.ok:
            raise CommandFailed(self)
        return self


UNUSUAL = ("signal", "timed_out", "oom_killed", "truncated", "spill_path", "stderr_spill_path", "reason", "state_lost")
SHOWN_LINES, SHOWN_CHARACTERS = 2, 160


def first_lines(text: str) -> str:
    """Return the first lines of an output, with an ellipsis where more follows."""
    lines = "".join(text[:SHOWN_CHARACTERS].splitlines(keepends=True)[:SHOWN_LINES])
    return lines if lines == text else lines.rstrip("\n") + "…"


def describe_result(result: object, *unusual: str, **fields: object) -> str:
    """Return the repr of a result: these fields, and of the unusual ones those that are set."""
    fields |= {name: value for name in unusual if (value := getattr(result, name))}
    return f"{type(result).__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def as_text(data: bytes, cut_at: int = 0, dropped_bytes: int = 0) -> str:
    """Decode kept bytes as UTF-8 with replacement; where bytes were dropped, one line says so at the cut."""
    if dropped_bytes <= 0:
        return data.decode("utf-8", "replace")
    head = data[:cut_at].decode("utf-8", "replace")
    tail = data[cut_at:].decode("utf-8", "replace")
    gap = "" if not head or head.endswith("\n") else "\n"
    return f"{head}{gap}[... {dropped_bytes} bytes dropped ...]\n{tail}"


@dataclass(frozen=True, slots=True)
class Isolation:
    """What separates a slot from its neighbours and from the sandbox, as probed: each value a short plain statement of
    what holds.

    ``limits`` maps each limit that was asked for to how it is enforced, or to ``not enforced``. ``price_ms`` is what
    the set-up cost.
    """

    level: IsolationLevel
    filesystem: str = ""
    processes: str = ""
    users: str = ""
    network: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)
    price_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class FileStat:
    """Facts of one file. ``mode`` holds the permission bits, ``mtime`` is seconds since the epoch, ``target`` is where
    a link points. Two paths of a slot with the same ``id`` are the same file, as long as it exists.

    Names that are not UTF-8 hold surrogate escapes (``os.fsencode`` gives the bytes).
    """

    path: str
    name: str
    type: FileType
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    links: int = 1
    target: str | None = None
    id: str = ""

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type == "dir"

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.type == "file"


@dataclass(frozen=True, slots=True)
class FileWritten:
    """What a write did: bytes written, whether the file is new, and how many directories were made."""

    written: int
    created: bool
    dirs_created: int = 0


@dataclass(frozen=True, slots=True)
class TreeCopied:
    """What the transfer of a tree moved, and what it refused or skipped with the reason."""

    files: int
    bytes: int
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """One matching line: numbers count from 1, ``column`` in bytes."""

    path: str
    line: int
    column: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchFile:
    """One file of a search: how many lines match, and when it was changed."""

    path: str
    count: int
    mtime: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found. ``total`` and ``total_files`` count everything, also what the limit left out."""

    matches: tuple[SearchMatch, ...] = ()
    files: tuple[SearchFile, ...] = ()
    total: int = 0
    total_files: int = 0
    truncated: bool = False
    binary_skipped: int = 0
    errors: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown = {"total": self.total, "total_files": self.total_files}
        return describe_result(self, "truncated", "binary_skipped", "errors", **shown)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process that lives in a slot. ``request_id`` is the request that started it, where that is known.

    A process that shows no arguments, as in the middle of an exec, has its short name in brackets, as in ps.
    """

    pid: int
    argv: tuple[str, ...]
    started_at: float
    rss_bytes: int
    request_id: int | None = None
    state: str = ""


@dataclass(frozen=True, slots=True)
class RunnerMemory:
    """What a runner keeps of output, and of what is under way, in bytes: its budget, how much of it is in use and was
    at most, and how much output was dropped because the budget was used up.
    """

    limit_bytes: int
    used_bytes: int
    peak_bytes: int
    dropped_bytes: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool at one moment. ``sandboxes`` counts sandboxes by state; the acquire times are over the last thousand
    acquisitions. ``slots_most`` is how many slots the pool can ever have at once, ``acquired`` how many it has handed
    out since it was entered, and ``released`` how many of these nobody holds any more. ``runners`` maps each sandbox to
    the memory of its runner, as it was some seconds ago at most.
    """

    sandboxes: Mapping[str, int]
    slots_most: int
    slots_total: int = 0
    slots_in_use: int = 0
    slots_free: int = 0
    slots_quarantined: int = 0
    waiting: int = 0
    launches: int = 0
    failures: int = 0
    calls: int = 0
    acquired: int = 0
    released: int = 0
    acquire_p50_s: float = 0.0
    acquire_p95_s: float = 0.0
    runners: Mapping[str, RunnerMemory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """Something that happened in a pool; ``time`` is seconds since the epoch."""

    time: float
    sandbox: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched(PoolEvent):
    """A sandbox was started; its runner has not answered yet."""

    backend: str
    image: str | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(PoolEvent):
    """A sandbox is ready: its runner answered and its set-up is done."""

    slots: int
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired(PoolEvent):
    """A slot was lent."""

    slot: str
    owner: str | None = None
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(PoolEvent):
    """A slot is proven clean: it was given back, or it was reset by its holder, who goes on with it (`held`)."""

    slot: str
    held: bool = False
    duration_s: float = 0.0
    killed: KillReceipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(PoolEvent):
    """A slot could not be proven clean: nobody gets it, and its sandbox is replaced."""

    slot: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Died(PoolEvent):
    """A sandbox ended although nobody asked for it."""

    post_mortem: PostMortem
    slots_in_use: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped(PoolEvent):
    """A sandbox whose owner is gone was ended."""

    backend: str
    run_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(PoolEvent):
    """The pool decided on another number of sandboxes."""

    before: int
    after: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far the pull or build of an image is, or what a launch waits for; bytes are over the layers known so far."""

    image: str
    status: str
    current_bytes: int = 0
    total_bytes: int = 0
