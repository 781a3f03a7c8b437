"""Scores an episode: the model's processes are ended, its work is sealed, the check is put in and run."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeVar, get_args

import anyio

from hermes_agent.decoys import check_env, remove_decoys
from hermes_agent.episode import Episode
from hermes_agent.rewards import show_value, to_bool, to_float
from hermes_exec import KillReceipt, Slot
from hermes_exec.errors import ConfigError, ErrorCause, ExecError

Files = Mapping[str, str | bytes | Path]
"""Path below `slot.workdir` to what shall be there: a text, bytes, or a file or directory of this host."""

ScoreIn = Literal["sealed", "slot", "live"]
_SEAL_LIMIT_BYTES = 1 << 30
T = TypeVar("T")
_OUTPUT_BYTES = 8192
_HOST_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE})
"""What reading in a slot does not meet: these are of the archive on this host."""
_SIGKILL = 9


class Verdict(NamedTuple):
    """The score of an episode: `reward`, usually 0 to 1, whether that is `solved`, and what a command check printed
    (beginning and end) and ended with; `exit_code` is None where none ran.
    """

    reward: float
    solved: bool
    exit_code: int | None = None
    output: str = ""


Scorer = Callable[[Slot, Episode], Awaitable[Verdict]]
"""An async function of the slot and the episode."""


class CheckFailed(Exception):
    """Raised when a check came to no verdict: it took too long, or it was killed. That is no failure of the model."""


@dataclass(frozen=True)
class CommandCheck:
    """A `Scorer` that runs a command in `slot.workdir`: exit code 0 is solved, with reward 1, any other is 0.

    A check that takes longer than `timeout_s` (default 60), that runs out of memory or is killed raises CheckFailed.
    """

    command: str | Sequence[str]
    timeout_s: float = 60.0

    async def __call__(self, slot: Slot, episode: Episode) -> Verdict:
        """Run it."""
        result = await slot.run(
            self.command, timeout_s=self.timeout_s, merge_stderr=True, output_limit_bytes=_OUTPUT_BYTES
        )
        if result.timed_out:
            raise CheckFailed(f"the check took longer than {self.timeout_s:g} s; it printed: {result.output[-500:]}")
        if result.signal == _SIGKILL or (result.oom_killed and not result.ok):
            why = "ran out of memory" if result.oom_killed else "was killed"
            raise CheckFailed(f"the check {why}; it printed: {result.output[-500:]}")
        return Verdict(float(result.ok), result.ok, result.exit_code, result.output)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How an episode is scored.

    First every process of the slot is ended. With `score_in="sealed"` (default) what the model made is then taken out,
    the slot is reset, and it is put back: nothing else that the model left, such as programs in its home, in /tmp or in
    the image's directories, is there when `check` runs. What is taken out is the whole of `slot.workdir`, or only
    `keep` (paths in it): then the task's own files and set-up are made anew first, and everything else is as it was at
    the start. More than `seal_limit_bytes` in all (default 1 GiB), or what takes longer than `seal_timeout_s` (default
    300 s; a million files, directories nested without end), is not taken out: reward 0. With `score_in="slot"` the
    check runs in the slot as the model left it, for tasks whose state is files of the machine. With `score_in="live"`
    no process is ended: services that the model started answer the check, and a process of the model may act on
    whatever the check does.

    Then `files` are put in, over whatever is at their paths. Links in the work directory that lead to them or to a
    directory above them, bytecode beside them, and modules that Python prefers to them are removed; so are, of sealed
    work, links that lead to nothing and settings of git repositories that make git run a program; what takes longer
    than `seal_timeout_s` to be removed is reward 0, too. Then `check` is
    awaited, with `slot.extra_env` set so that neither bytecode of the model is imported nor its git hooks run: a
    `CommandCheck`, or any function of slot and episode that gives a `Verdict`, also where it cannot read what the model
    left: an OSError about a file or a ValueError that it raises is a mistake of its author.
    """

    check: Scorer
    files: Files = field(default_factory=dict)
    score_in: ScoreIn = "sealed"
    keep: Sequence[str] | None = None
    seal_limit_bytes: int = _SEAL_LIMIT_BYTES
    seal_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.score_in not in get_args(ScoreIn):
            raise ConfigError(f"score_in is 'sealed', 'slot' or 'live', not {self.score_in!r}")
        if isinstance(self.keep, str):
            raise ConfigError("keep is a list of paths, not one path")
        if self.keep is not None and self.score_in != "sealed":
            raise ConfigError(
                f"keep says what is taken out of the slot, and with score_in={self.score_in!r} nothing is"
            )
        for path in (*(self.keep or ()), *self.files):
            check_inside(path)


def check_inside(path: str) -> None:
    """Raise ConfigError unless it is a relative path that leads below the directory it starts in."""
    parts = path.split("/")
    if path.startswith("/") or {"", ".", ".."}.intersection(parts) or "\0" in path:
        raise ConfigError(f"{path!r} is no path inside of the workspace")


async def score(
    slot: Slot, episode: Episode, scoring: Scoring, set_up: Callable[[Slot], Awaitable[None]]
) -> tuple[Verdict, KillReceipt | None]:
    """Score an episode in its slot. `set_up` brings the task's own files.

    A sandbox that its own tenant ended, or work that is too large to be taken out, has reward 0. Raises CheckFailed,
    and the ExecError or OSError that kept the check from its verdict.
    """
    killed: KillReceipt | None = None
    sealed = scoring.score_in == "sealed"
    roots: Sequence[str] = () if slot.workdir == "/" else (".",)
    try:
        if scoring.score_in != "live":
            killed = await slot.kill_all()
        if sealed:
            roots = await _within(_seal(slot, scoring, set_up), scoring.seal_timeout_s, "taken out")
        await _put_check_files(slot, scoring, roots)
        with _extra_env(slot, check_env(slot, sealed=sealed, whole=sealed and scoring.keep is None)):
            return check_verdict(await scoring.check(slot, episode), "a check"), killed
    except (ExecError, _UnusableWork) as error:
        if isinstance(error, ExecError) and error.cause is not ErrorCause.POLICY:
            raise
        output = str(error) if isinstance(error, _UnusableWork) else f"{type(error).__name__}: {error}"
        return Verdict(0.0, solved=False, output=output), killed


@contextmanager
def _extra_env(slot: Slot, env: Mapping[str, str]) -> Iterator[None]:
    """Add variables to those that a slot has for all that it starts, which `prepare` may have set."""
    before = slot.extra_env
    slot.extra_env = {**before, **env}
    try:
        yield
    finally:
        slot.extra_env = before


def check_verdict(verdict: object, author: str) -> Verdict:
    """Return a verdict with plain values: its reward and `solved` may be scalars of numpy or torch.

    Raises:
        ConfigError: it is no verdict, its reward is not a finite number, or `solved` is neither true nor false; the
            message begins with `author`.
    """
    if not isinstance(verdict, Verdict):
        raise ConfigError(f"{author} returns a Verdict, not {show_value(verdict)}")
    part = "a finite reward"
    try:
        reward = to_float(verdict.reward)
        part = "a solved of True or False"
        solved = to_bool(verdict.solved)
    except ValueError as error:
        raise ConfigError(f"{author} returns a Verdict with {part}: {error}") from None
    return verdict._replace(reward=reward, solved=solved)


def is_work_error(error: Exception) -> bool:
    """Return whether a check raised an error because it could not read what the model left: one about a file, or about
    a value in it.
    """
    if isinstance(error, OSError):
        ours = isinstance(error, (ExecError, TimeoutError)) or error.errno in _HOST_ERRNOS
        return error.filename is not None and not ours
    return isinstance(error, ValueError) and not isinstance(error, ExecError)


class _UnusableWork(Exception):
    """Raised when what the model left keeps its work from being taken out, or the check's files from being put in."""


async def put_files(slot: Slot, files: Files) -> None:
    """Put files into `slot.workdir`."""
    for path, content in files.items():
        if isinstance(content, Path):
            await slot.files.upload(content, path)
        elif isinstance(content, bytes):
            await slot.files.write_bytes(path, content)
        else:
            await slot.files.write_text(path, content)


async def _seal(slot: Slot, scoring: Scoring, set_up: Callable[[Slot], Awaitable[None]]) -> list[str]:
    """Take the work out, reset the slot, put the work back; return the paths that were put back.

    A second slot would not do: a full pool has none.
    """
    whole = scoring.keep is None
    if whole and slot.workdir == "/":
        raise ConfigError(
            "the work directory is /, which cannot be taken out: name the files (keep=), or say score_in='slot'"
        )
    with ExitStack() as archives:
        works: dict[str, _SealedWork | None] = {}
        left_bytes = scoring.seal_limit_bytes
        for path in ["."] if scoring.keep is None else scoring.keep:
            # A file without a name: it is gone with this process, however that ends.
            archive = archives.enter_context(tempfile.TemporaryFile())
            works[path] = await _take_out(slot, path, archive, max(1, left_bytes))
            left_bytes -= archive.tell()
        await slot.reset()
        if whole:
            for entry in await slot.files.list("."):
                await slot.files.remove(entry.name, recursive=True)
        else:
            await set_up(slot)
        for path, work in works.items():
            if not whole:
                await _clear(slot, path)
            if work is not None:
                work.archive.seek(0)
                await slot.files.restore(work.archive, work.below)
        return [path for path, work in works.items() if work is not None]
    raise AssertionError("unreachable")


class _SealedWork(NamedTuple):
    """What was taken out, and the directory of the slot that it goes back below."""

    archive: BinaryIO
    below: str


async def _take_out(slot: Slot, path: str, archive: BinaryIO, limit_bytes: int) -> _SealedWork | None:
    """A copy of what is at that path; None where nothing of use is: nothing, a link, a FIFO, what may not be read.

    A link says nothing of what the model made: it may lead to the task's own files.
    """
    try:
        facts = await slot.files.stat(path, follow=path == ".")
        if facts.type not in ("file", "dir"):
            return None
        copied = await slot.files.save(path, archive, limit_bytes)
    except OSError as error:
        if isinstance(error, (ExecError, TimeoutError)) or error.errno in _HOST_ERRNOS:
            raise
        return None
    if facts.type == "file":
        return _SealedWork(archive, path.rpartition("/")[0] or ".") if copied.files else None
    return _SealedWork(archive, path)


async def _within(work: Awaitable[T], limit_s: float, action: str) -> T:
    """Do this work. Raises _InTheWay where that takes too long."""
    with anyio.move_on_after(limit_s):
        return await work
    raise _UnusableWork(f"what the model left could not be {action} within {limit_s:g} s")


async def _put_check_files(slot: Slot, scoring: Scoring, roots: Sequence[str]) -> None:
    """Put files in over whatever is there, and remove what the model left to be read in their place."""
    files, sealed = scoring.files, scoring.score_in == "sealed"
    try:
        for path, content in files.items():
            await _within(_clear(slot, path), scoring.seal_timeout_s, "removed")
            await put_files(slot, {path: content})
        decoys = remove_decoys(slot, tuple(files), roots, sealed=sealed)
        await _within(decoys, scoring.seal_timeout_s, "looked through")
    except OSError as error:
        is_ours = isinstance(error, (ExecError, TimeoutError)) or any(
            isinstance(content, Path) and not content.exists() for content in files.values()
        )
        if is_ours:
            raise
        raise _UnusableWork(str(error)) from error


async def _clear(slot: Slot, path: str) -> None:
    """Take away what is at a path, and what stands in its way: a link or a file where a directory must be."""
    *parents, _ = path.split("/")
    for depth in range(1, len(parents) + 1):
        parent = "/".join(parents[:depth])
        try:
            facts = await slot.files.stat(parent, follow=False)
        except FileNotFoundError:
            return
        if not facts.is_dir:
            await slot.files.remove(parent)
            return
    await slot.files.remove(path, recursive=True, missing_ok=True)
