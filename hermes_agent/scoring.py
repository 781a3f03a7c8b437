"""Scores an episode: ends the model's processes, seals its work, puts the check's files in and runs the check."""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, get_args

import anyio

from hermes_agent.decoys import check_env, remove_decoys
from hermes_agent.episode import Episode
from hermes_agent.rewards import show_value, to_bool, to_float
from hermes_exec import KillReceipt, Slot
from hermes_exec.errors import CheckpointLost, ConfigError, ErrorCause, ExecError, HostDiskFull, SlotBusy

logger = logging.getLogger(__name__)
Files = Mapping[str, str | bytes | Path]
"""Path below `slot.workdir` to its content: a text, bytes, or the path of a file or directory on this host."""

ScoreIn = Literal["sealed", "slot", "fork", "live"]
_SEAL_LIMIT_BYTES = 1 << 30
_LITTLE_ROOM_BYTES = 16 << 20
T = TypeVar("T")
_OUTPUT_BYTES = 8192
_HOST_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE})
"""Errors that only this host raises, when it writes the archive: reading in a slot raises none of them."""
_SIGKILL = 9


class Verdict(NamedTuple):
    """The score of an episode.

    Attributes:
        reward: The reward, usually 0 to 1.
        solved: Whether the task was solved.
        exit_code: The exit code of a command check. None if no command ran.
        output: The beginning and end of a command check's output.
        info: Further values of the scorer, as JSON types.
    """

    reward: float
    solved: bool
    exit_code: int | None = None
    output: str = ""
    info: Mapping[str, Any] = MappingProxyType({})


Scorer = Callable[[Slot, Episode], Awaitable[Verdict]]
"""An async function of the slot and the episode."""


class CheckFailed(Exception):
    """Raised when a check reached no verdict because it took too long or was killed. The model is not to blame."""


@dataclass(frozen=True)
class CommandCheck:
    """A `Scorer` that runs a command in `slot.workdir`: exit code 0 is solved with reward 1, any other is reward 0.

    A check raises CheckFailed if it takes too long, runs out of memory or is killed.

    Args:
        command: The command.
        timeout_s: Longest time of the check.
    """

    command: str | Sequence[str]
    timeout_s: float = 60.0

    async def __call__(self, slot: Slot, episode: Episode) -> Verdict:
        """Run the command and return the verdict."""
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
    """The way to score an episode.

    1. The slot is prepared as `score_in` selects.
    2. `files` are put in and replace whatever is at their paths. Links in the working directory that lead to them or to
    a directory above them, bytecode beside them, and modules that Python prefers to them are removed. In sealed work,
    links that lead nowhere and settings of git repositories that make git run a program are removed too. If the removal
    takes longer than `seal_timeout_s`, the reward is 0.
    3. `check` is awaited, with `slot.extra_env` set so that Python imports no bytecode of the model and git runs none
    of its hooks.

    Args:
        check: A `CommandCheck`, or any async function of slot and episode that returns a `Verdict`, even if it cannot
            read the model's files: an OSError about a file or a ValueError from it is a mistake of its author.
        files: The check's own files.
        score_in: `"sealed"`: every process of the slot is ended, the model's work is copied out, the slot is reset, and
            the work is put back. When `check` runs, nothing else of the model is left, such as programs in its home, in
            /tmp or in the image's directories. `"slot"`: every process is ended, and the check runs in the slot as the
            model left it, for tasks whose state is files of the machine. `"fork"`: as `"slot"`, and the slot then
            returns to the state before the check's files were put in, by a checkpoint (`Slot.checkpoint`): for a slot
            that is used further. `"live"`: no process is ended. Services that the model started answer the check, and a
            process of the model may interfere with the check.
        keep: Paths in `slot.workdir` that are the work. The task's own files and set-up are then made anew, and
            everything else is as it was at the start. None: the work is all of `slot.workdir`.
        seal_limit_bytes: The most bytes of work. More has reward 0.
        seal_timeout_s: Longest time to copy the work (a million files, directories nested without end). Longer has
            reward 0.

    Raises:
        ConfigError: If `score_in`, `keep` or a path is invalid.
    """

    check: Scorer
    files: Files = field(default_factory=dict)
    score_in: ScoreIn = "sealed"
    keep: Sequence[str] | None = None
    seal_limit_bytes: int = _SEAL_LIMIT_BYTES
    seal_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.score_in not in get_args(ScoreIn):
            raise ConfigError(f"score_in is 'sealed', 'slot', 'fork' or 'live', not {self.score_in!r}")
        if isinstance(self.keep, str):
            raise ConfigError("keep is a list of paths, not one path")
        if self.keep is not None and self.score_in != "sealed":
            raise ConfigError(f"keep needs score_in='sealed': with score_in={self.score_in!r} no work is copied out")
        for path in (*(self.keep or ()), *self.files):
            check_inside(path)


def check_inside(path: str) -> None:
    """Raise ConfigError unless `path` is a relative path that leads below the directory it starts in."""
    parts = path.split("/")
    if path.startswith("/") or {"", ".", ".."}.intersection(parts) or "\0" in path:
        raise ConfigError(f"{path!r} is not a path inside the working directory")


async def score(
    slot: Slot, episode: Episode, scoring: Scoring, set_up: Callable[[Slot], Awaitable[None]] | None = None
) -> tuple[Verdict, KillReceipt | None]:
    """Score an episode in its slot. `set_up` brings the task's own files into the clean slot, if `keep` names the work.

    A sandbox that its own tenant ended, or work that is too large to copy out or for its disk, has reward 0. With
    `score_in="fork"` the slot can be scored again, from the same state.

    Returns:
        The verdict, and the receipt of the ended processes.

    Raises:
        CheckFailed: If the check reached no verdict.
        ConfigError: If `score_in` is "fork" and the slot can have no checkpoint.
        ExecError: If the slot failed, or (HostDiskFull) others filled a disk of it.
        OSError: If this host failed, or a file of the check is missing.
    """
    killed: KillReceipt | None = None
    sealed = scoring.score_in == "sealed"
    roots: Sequence[str] = () if slot.workdir == "/" else (".",)
    async with AsyncExitStack() as stack:
        try:
            if scoring.score_in != "live":
                killed = await slot.kill_all()
            if scoring.score_in == "fork":
                await stack.enter_async_context(_return_afterwards(slot))
            if sealed:
                roots = await _within(_seal(slot, scoring, set_up), scoring.seal_timeout_s, "copied out")
            await _put_check_files(slot, scoring, roots)
            with _extra_env(slot, check_env(slot, sealed=sealed, whole=sealed and scoring.keep is None)):
                verdict = check_verdict(await scoring.check(slot, episode), "a check")
        except (ExecError, _UnusableWork) as error:
            if isinstance(error, ExecError) and error.cause is not ErrorCause.POLICY:
                raise
            output = str(error) if isinstance(error, _UnusableWork) else f"{type(error).__name__}: {error}"
            verdict = Verdict(0.0, solved=False, output=output)
        if slot.disk_full and not verdict.solved:
            await slot.check_disk()
        return verdict, killed
    raise AssertionError("unreachable")


@asynccontextmanager
async def _return_afterwards(slot: Slot) -> AsyncIterator[None]:
    """Return the slot to its present state at the end of the block, however that ends."""
    try:
        checkpoint = await slot.checkpoint(temporary=True)
    except SlotBusy as error:  # calls and processes of others: the model has none any more
        raise CheckFailed(f"no checkpoint of the slot, which score_in='fork' needs: {error}") from error
    except OSError as error:
        if isinstance(error, (ExecError, TimeoutError)):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            await slot.check_disk()
        elif not is_work_error(error):
            raise
        raise _UnusableWork(f"no checkpoint of the model's files: {error}") from error
    try:
        yield
    finally:
        try:
            await slot.restore(checkpoint)  # to its end, also if this task is cancelled
        except ExecError as error:
            if not slot.closed and not isinstance(error, CheckpointLost):
                raise
            # The score is final, and nobody can use the slot in a wrong state.
            logger.warning("after a check: %s: %s", type(error).__name__, error)
        finally:
            await checkpoint.drop()


@contextmanager
def _extra_env(slot: Slot, env: Mapping[str, str]) -> Iterator[None]:
    """Add variables to `slot.extra_env`, which every command of the slot gets and `prepare` may have set."""
    before = slot.extra_env
    slot.extra_env = {**before, **env}
    try:
        yield
    finally:
        slot.extra_env = before


def check_verdict(verdict: object, author: str) -> Verdict:
    """Return a verdict with plain values: its reward and `solved` may be scalars of numpy or torch.

    Raises:
        ConfigError: If it is not a verdict, its reward is not a finite number, or `solved` is neither true nor false.
            The message begins with `author`.
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
    """Return whether a check raised an error because it could not read the model's files: an error about a file, or
    about a value in it.
    """
    if isinstance(error, OSError):
        ours = isinstance(error, (ExecError, TimeoutError)) or error.errno in _HOST_ERRNOS
        return error.filename is not None and not ours
    return isinstance(error, ValueError) and not isinstance(error, ExecError)


class _UnusableWork(Exception):
    """Raised when the model's work cannot be copied out, or the check's files cannot be put in."""


async def put_files(slot: Slot, files: Files) -> None:
    """Put files into `slot.workdir`."""
    for path, content in files.items():
        if isinstance(content, Path):
            await slot.files.upload(content, path)
        elif isinstance(content, bytes):
            await slot.files.write_bytes(path, content)
        else:
            await slot.files.write_text(path, content)


async def _seal(slot: Slot, scoring: Scoring, set_up: Callable[[Slot], Awaitable[None]] | None) -> list[str]:
    """Copy the work out, reset the slot, and put the work back. Return the paths that were put back.

    A second slot is no alternative, because a full pool has none.
    """
    whole = scoring.keep is None
    if whole and slot.workdir == "/":
        raise ConfigError(
            "the working directory is /, which cannot be copied out: name the files (keep=), or set score_in='slot'"
        )
    with ExitStack() as archives:
        works: dict[str, _SealedWork | None] = {}
        left_bytes = scoring.seal_limit_bytes
        for path in ["."] if scoring.keep is None else scoring.keep:
            # An unnamed file is deleted however this process ends.
            archive = archives.enter_context(tempfile.TemporaryFile())
            works[path] = await _take_out(slot, path, archive, max(1, left_bytes))
            left_bytes -= archive.tell()
        await slot.reset()
        if whole:
            for entry in await slot.files.list("."):
                await slot.files.remove(entry.name, recursive=True)
        elif set_up is not None:
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
    """An archive of the model's work, and the directory of the slot to restore it in."""

    archive: BinaryIO
    below: str


async def _take_out(slot: Slot, path: str, archive: BinaryIO, limit_bytes: int) -> _SealedWork | None:
    """Copy the work at a path into an archive. Return None if there is nothing to copy: no file, a link, a FIFO, or no
    permission.

    Links are skipped because they may lead to the task's own files.
    """
    try:
        facts = await slot.files.stat(path, follow=path == ".")
        if facts.type not in ("file", "dir"):
            return None
        copied = await slot.files.save(path, archive, limit_bytes)
    except OSError as error:
        if not isinstance(error, ExecError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full_disk_error(slot, archive, error) from error
        if isinstance(error, (ExecError, TimeoutError)) or error.errno in _HOST_ERRNOS:
            raise
        return None
    if facts.type == "file":
        return _SealedWork(archive, path.rpartition("/")[0] or ".") if copied.files else None
    return _SealedWork(archive, path)


def _full_disk_error(slot: Slot, archive: BinaryIO, error: OSError) -> HostDiskFull:
    """Return the error of an archive for which this host has no room. Its sandbox is None if there is hardly any for
    other archives either.
    """
    archive.seek(0)
    archive.truncate()
    where = tempfile.gettempdir()
    text = f"no room for the work of a slot in {where} on this host: {error.strerror}"
    sandbox = None if shutil.disk_usage(where).free < _LITTLE_ROOM_BYTES else slot.sandbox
    return HostDiskFull(f"{text}; remove files there, or set TMPDIR", sandbox=sandbox)


async def _within(work: Awaitable[T], limit_s: float, action: str) -> T:
    """Await the work. Raise _UnusableWork if it takes longer than `limit_s`."""
    with anyio.move_on_after(limit_s):
        return await work
    raise _UnusableWork(f"the model's files could not be {action} within {limit_s:g} s")


async def _put_check_files(slot: Slot, scoring: Scoring, roots: Sequence[str]) -> None:
    """Replace whatever is at the paths of the check's files, and remove decoys of the model."""
    files, sealed = scoring.files, scoring.score_in == "sealed"
    try:
        for path, content in files.items():
            await _within(_clear(slot, path), scoring.seal_timeout_s, "removed")
            await put_files(slot, {path: content})
        decoys = remove_decoys(slot, tuple(files), roots, sealed=sealed)
        await _within(decoys, scoring.seal_timeout_s, "searched")
    except OSError as error:
        is_ours = isinstance(error, (ExecError, TimeoutError)) or any(
            isinstance(content, Path) and not content.exists() for content in files.values()
        )
        if is_ours:
            raise
        raise _UnusableWork(str(error)) from error


async def _clear(slot: Slot, path: str) -> None:
    """Remove a path, and any link or file on the way to it where a directory must be."""
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
