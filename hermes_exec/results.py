"""Results of calls: frozen dataclasses, sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hermes_exec.errors import CommandFailed, PostMortem

IsolationLevel = Literal["none", "landlock", "uid", "namespaces", "exclusive"]
"""The levels of isolation, lowest first. Each level satisfies a `min_isolation` of its own or a lower one."""
SlotRoot = Literal["own", "shared"]
"""Whether a slot has a private root over the image, or shares its sandbox's root."""

FileType = Literal["file", "dir", "link", "fifo", "socket", "char", "block"]


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a command used, with its waited-for children.

    `max_rss_bytes` is the largest resident size of any one of them. It is never below the size of the slot's agent
    (about 7 MiB, more shortly after a listing of very many files): on Linux a child starts with its parent's peak.
    """

    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KillReceipt:
    """The processes found and killed when a process tree or a slot was ended. `left` above 0 quarantines the slot.

    `handles` names the means (`pid namespace`, `cgroup`, `gid`, `process group`, …).
    """

    found: int = 0
    killed: int = 0
    left: int = 0
    rounds: int = 0
    handles: tuple[str, ...] = ()
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a command. A failure, a timeout and an out-of-memory kill are results, not exceptions.

    `stdout_bytes`, `stderr_bytes` and `output_bytes` hold only bytes that the command wrote, at most
    `output_limit_bytes` each; `stdout_total_bytes` and `stderr_total_bytes` count all bytes that it wrote. Where the
    middle was dropped, `*_cut_at` is the offset of the gap in the kept bytes and `*_dropped_bytes` its size.
    `exit_code` is 128 + `signal` for a signalled command, 127 for a missing program and 126 for a program that cannot
    be executed (`reason` explains it).

    `oom_killed`: memory ran out, and the kernel killed the command (exit code 137) or a part of it, such as one side of
    a pipeline, with any exit code. A killed part is inferred from the kernel's count of such kills while the command
    ran: if the command ran alone in a slot with a memory limit or in a sandbox of its own, or had a process of more
    than half of the limit. The kernel does not name the process. Exit code 137 for another reason, such as `timeout -s
    KILL`, is therefore reported as `oom_killed` if another command, or a slot with the same count, lost a process to
    such a kill meanwhile.

    `state_lost` is None outside of sessions, and if the session continues from the command's state. Otherwise it is the
    reason why not: the shell was killed or replaced (`exec`), or could not save its state.
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
        return describe_result(self, *UNUSUAL_FIELDS, **fields)

    @property
    def stdout(self) -> str:
        """Standard output as UTF-8: invalid bytes become U+FFFD, and one line marks dropped bytes."""
        return as_text(self.stdout_bytes, self.stdout_cut_at, self.stdout_dropped_bytes)

    @property
    def stderr(self) -> str:
        """Standard error, in the form of `stdout`."""
        return as_text(self.stderr_bytes, self.stderr_cut_at, self.stderr_dropped_bytes)

    @property
    def output(self) -> str:
        """Both streams in order of arrival, as exact as two pipes allow; exact with `merge_stderr`."""
        return as_text(self.output_bytes, self.output_cut_at, self.output_dropped_bytes)

    @property
    def stdout_dropped_bytes(self) -> int:
        """The number of bytes of standard output that are not in `stdout_bytes`."""
        return self.stdout_total_bytes - len(self.stdout_bytes)

    @property
    def stderr_dropped_bytes(self) -> int:
        """The number of bytes of standard error that are not in `stderr_bytes`."""
        return self.stderr_total_bytes - len(self.stderr_bytes)

    @property
    def truncated(self) -> bool:
        """Whether bytes of any of the three outputs were dropped."""
        return self.stdout_dropped_bytes > 0 or self.stderr_dropped_bytes > 0 or self.output_dropped_bytes > 0

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> RunResult:
        """Return the result if the command succeeded.

        Raises:
            CommandFailed: If it failed.
        """
        if not self.ok:
            raise CommandFailed(self)
        return self


UNUSUAL_FIELDS = (
    "signal",
    "timed_out",
    "oom_killed",
    "truncated",
    "spill_path",
    "stderr_spill_path",
    "reason",
    "state_lost",
)
SHOWN_LINES, SHOWN_CHARACTERS = 2, 160


def first_lines(text: str) -> str:
    """Return the first lines of an output, with an ellipsis if more follows."""
    lines = "".join(text[:SHOWN_CHARACTERS].splitlines(keepends=True)[:SHOWN_LINES])
    return lines if lines == text else lines.rstrip("\n") + "…"


def describe_result(result: object, *unusual: str, **fields: object) -> str:
    """Return the repr of a result: these fields, and the unusual ones that are set."""
    fields |= {name: value for name in unusual if (value := getattr(result, name))}
    return f"{type(result).__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def as_text(data: bytes, cut_at: int = 0, dropped_bytes: int = 0) -> str:
    """Decode kept bytes as UTF-8 with replacement, with one line that marks dropped bytes."""
    if dropped_bytes <= 0:
        return data.decode("utf-8", "replace")
    head = data[:cut_at].decode("utf-8", "replace")
    tail = data[cut_at:].decode("utf-8", "replace")
    gap = "" if not head or head.endswith("\n") else "\n"
    return f"{head}{gap}[... {dropped_bytes} bytes dropped ...]\n{tail}"


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation of a slot from its neighbours and from the sandbox, as probed: each value is a short plain
    statement.

    `limits` maps each requested limit to its enforcement, or to `not enforced`. `price_ms` is the cost of the setup.
    """

    level: IsolationLevel
    filesystem: str = ""
    processes: str = ""
    users: str = ""
    network: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)
    price_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a slot of one profile and image can have: the answer of `SandboxPool.abilities`.

    `slot_limits` and `sandbox_limits` are the names of the fields of `Limits` that `slot_limits` and `limits` of a pool
    or profile can enforce. `users` is whether `run(user=)` may name other users than the slot's own. `network_off` is
    whether `network=False` is possible. `own_root` is whether the whole root belongs to the slot: nobody else sees its
    changes, and they end with it. So it is with a root of its own, and in an exclusive sandbox. `gpus` is whether the
    sandbox is launched with GPUs, as the option `gpus` requests.
    """

    isolation: IsolationLevel
    slot_limits: frozenset[str] = frozenset()
    sandbox_limits: frozenset[str] = frozenset()
    users: bool = False
    network_off: bool = False
    own_root: bool = False
    gpus: bool = False


@dataclass(frozen=True, slots=True)
class FileStat:
    """Facts of one file.

    `mode` holds the permission bits, `mtime` is seconds since the epoch, `target` is the target of a link. Two paths of
    a slot with the same `id` are the same file, as long as it exists. Names that are not UTF-8 hold surrogate escapes
    (`os.fsencode` returns the bytes).
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
    """The result of a write: bytes written, whether the file is new, and how many directories were created."""

    written: int
    created: bool
    dirs_created: int = 0


@dataclass(frozen=True, slots=True)
class TreeCopied:
    """The result of a tree transfer: files and bytes, and the refused or skipped entries with the reason."""

    files: int
    bytes: int
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """One matching line: numbers count from 1, `column` in bytes of UTF-8."""

    path: str
    line: int
    column: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchFile:
    """One file of a search: the number of matching lines, and the time of its last change."""

    path: str
    count: int
    mtime: float


@dataclass(frozen=True, slots=True)
class SearchSkipped:
    """Entries that a search left out for one reason: their number, and the paths of the first five.

    `reason` is "hidden", "ignored" (by an ignore file), "binary", "link" (the contents of links are not searched) or
    "directory" (its name matches, but only files are listed).
    """

    reason: str
    count: int
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search. `total` and `total_files` also count matches beyond the limit.

    `skipped` has the entries that were left out although they may match. `binary_skipped` is the number of binary ones.
    """

    matches: tuple[SearchMatch, ...] = ()
    files: tuple[SearchFile, ...] = ()
    total: int = 0
    total_files: int = 0
    truncated: bool = False
    binary_skipped: int = 0
    errors: tuple[str, ...] = ()
    skipped: tuple[SearchSkipped, ...] = ()

    def __repr__(self) -> str:
        shown = {"total": self.total, "total_files": self.total_files}
        return describe_result(self, "truncated", "binary_skipped", "errors", **shown)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process in a slot. `request_id` is the request that started it, where known.

    A process without visible arguments, as in the middle of an exec, has its short name in brackets, as in ps.
    """

    pid: int
    argv: tuple[str, ...]
    started_at: float
    rss_bytes: int
    request_id: int | None = None
    state: str = ""


@dataclass(frozen=True, slots=True)
class RunnerMemory:
    """A runner's memory for output and data in transit, in bytes.

    It has the budget, the current and the highest use, and how much output was dropped because the budget was used up.
    """

    limit_bytes: int
    used_bytes: int
    peak_bytes: int
    dropped_bytes: int


class LayerSize(NamedTuple):
    """The size of layers of files: the number of their entries, and the bytes that they take on the disk."""

    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The figures of a pool at one moment.

    `sandboxes` counts sandboxes by state. The acquire times are over the last thousand acquisitions. `slots_most` is
    the maximum number of slots at once, `acquired` the number of acquisitions since the pool was entered, and
    `released` how many of these have ended. `checkpoints` counts the living checkpoints. `runners` maps each sandbox to
    the memory of its runner, and `layers` to the size of the files that its checkpoints and forks hold. Both are at
    most some seconds old, and a large layer counts some seconds after its checkpoint.
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
    checkpoints: int = 0
    acquire_p50_s: float = 0.0
    acquire_p95_s: float = 0.0
    runners: Mapping[str, RunnerMemory] = field(default_factory=dict)
    layers: Mapping[str, LayerSize] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """An event of a pool; `time` is seconds since the epoch."""

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
    """A sandbox is ready: its runner answered and its setup is done."""

    slots: int
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired(PoolEvent):
    """A slot was acquired."""

    slot: str
    owner: str | None = None
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(PoolEvent):
    """A slot is proven clean: it was released, or reset by its holder, who keeps it (`held`)."""

    slot: str
    held: bool = False
    duration_s: float = 0.0
    killed: KillReceipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(PoolEvent):
    """A slot could not be proven clean: it is not used again, and its sandbox is replaced."""

    slot: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Died(PoolEvent):
    """A sandbox ended unexpectedly."""

    post_mortem: PostMortem
    slots_in_use: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped(PoolEvent):
    """A sandbox without a living owner was ended."""

    backend: str
    run_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(PoolEvent):
    """The pool changed its number of sandboxes."""

    before: int
    after: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """The progress of an image pull or build, or the state of a waiting launch. Bytes are over the known layers."""

    image: str
    status: str
    current_bytes: int = 0
    total_bytes: int = 0
