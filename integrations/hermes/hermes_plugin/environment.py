"""The environment of hermes-agent whose commands run in a slot."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import posixpath
import re
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tools.environments.base import BaseEnvironment

from hermes_exec import ConfigError, ExecError, RunResult
from hermes_exec.blocking import SandboxPool, Session, Slot
from hermes_exec.tools import Toolbox
from hermes_plugin.file_sync import FileSync
from hermes_plugin.interrupts import Interrupted, run_interruptibly
from hermes_plugin.options import Options
from hermes_plugin.saved_files import SavedFiles

T = TypeVar("T")
logger = logging.getLogger(__name__)
PROBE_TASK_ID = "prompt-backend-probe"
"""hermes-agent's task for one command at the start of a session. It drops the environment without `cleanup`."""
DEFAULT_DIRECTORY = "/root"
"""The directory that hermes-agent states where none is configured. It is for slots whose home it is."""
SHOWN_BYTES = 4 << 20
WHOLE_BYTES = 64 << 20
INTERRUPTED_BYTES = 64 << 10
TIMEOUT_EXIT_CODE, NO_DIRECTORY_EXIT_CODE, INTERRUPTED_EXIT_CODE = 124, 126, 130


class SlotEnvironment(BaseEnvironment):
    """Runs the commands of one task in one slot.

    File tools of hermes-agent look for names of its own backends in the name of this class: it has none of them.

    Args:
        options: The options of the backend.
        task_id: The task of hermes-agent, by which files are kept.
        image: The image; None for the one in the options.
        cwd: The directory of the first command; empty for the slot's own.
        timeout: Longest time of a command for which none is stated, in seconds.
        persistent: Whether home and workspace are kept for the next environment of this task.
        lost_error: The exception that hermes-agent expects when the slot is lost.

    Raises:
        ConfigError: If an option is wrong.
        ExecError: If no slot can be acquired.
    """

    cwd: str
    """The directory of the shell."""

    def __init__(
        self,
        options: Options,
        *,
        task_id: str,
        image: str | None,
        cwd: str,
        timeout: int,
        persistent: bool,
        lost_error: Callable[[str], Exception],
    ) -> None:
        self._slot: Slot | None = None
        self._process_id = os.getpid()
        self._options, self._image, self._task_id = options, image, task_id
        self._lost_error = lost_error
        self._persistent = persistent  # hermes-agent reads it at the end of a turn
        self._saved = SavedFiles(task_id) if persistent else None
        self._notices: list[str] = []
        self._opening, self._running = threading.Lock(), threading.Lock()
        self._first_cwd, self._missing_cwd = cwd, ""
        self._toolbox: Toolbox | None = None
        self._clean_up_at_exit = partial(_clean_up, weakref.ref(self))
        self._recreated = False
        self._open_slot()
        super().__init__(cwd=self.cwd, timeout=timeout)

    def get_temp_dir(self) -> str:
        """Return the directory of the slot for temporary files."""
        return self._open_slot().tmp

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: int | None = None,
        stdin_data: str | None = None,
        rewrite_compound_background: bool = True,
        bounded_capture: bool = False,
        **_: object,
    ) -> dict[str, Any]:
        """Run a command and return `output` (both streams in order) and `returncode`.

        A command of the model (`bounded_capture`) changes directory and variables of the shell for later ones. Any
        other command runs beside it, without an effect on them, and its output is whole.

        Raises:
            Exception: `lost_error`, if the slot is lost. The next command gets a new one, and a notice.
        """
        prepared, sudo_input = self._prepare_command(command)
        stdin = (sudo_input or "") + (stdin_data or "") or None
        limit_s = timeout or self.timeout
        pieces = OutputEnd()
        try:
            slot = self.open_slot()
            directory = self._directory(cwd, slot)
            result, observed = self._run(prepared, directory, stdin, limit_s, pieces if bounded_capture else None)
        except Interrupted:
            return pieces.result_of_interrupt()
        except ExecError as error:
            if isinstance(error, ConfigError):
                return _result(str(error), NO_DIRECTORY_EXIT_CODE)
            raise self.lose(error) from error
        except OSError as error:
            if not error.filename:
                raise
            message = f"cd: {error.filename}: {error.strerror}"
            if self._slot and cwd in {"", self.cwd}:  # not of this call: hermes-agent would state it for ever
                self.cwd = self._slot.workdir
                message += f". Nothing was run. The next command starts in {self.cwd}."
            return _result(message, NO_DIRECTORY_EXIT_CODE)
        finally:
            if self._task_id == PROBE_TASK_ID:
                self.cleanup()
        if result.timed_out:
            note = f"[Command timed out after {limit_s}s]"
            return _result(f"{result.output}\n{note}" if result.output else note, TIMEOUT_EXIT_CODE)
        if bounded_capture:
            recreated, self._recreated = self._recreated, False
            notices = self.take_notices()
            if result.state_lost:
                notices.append(f"variables and directory of the shell were lost: {result.state_lost}")
            output = "".join(f"[hermes-exec: {line}]\n" for line in notices) + result.output
            more = {"cwd": observed, "cwd_observed": True} if observed else {}
            return {**_result(output, result.exit_code), "environment_recreated": recreated, **more}
        if result.truncated:
            size = f"{result.stdout_total_bytes} bytes of output are more than the {WHOLE_BYTES} that can be returned"
            return _result(size, result.exit_code or 1)
        return _result(result.output, result.exit_code)

    def call(self, work: Callable[[], Awaitable[T]], label: str) -> T:
        """Run `work` in the pool's event loop.

        Raises:
            Interrupted: If the user interrupted the turn.
        """
        return run_interruptibly(self._open_slot().portal, work, label)

    def open_slot(self) -> Slot:
        """Return the slot, with skills and credential files as they are now; a new one if the last was lost."""
        slot = self._open_slot()
        if self._sync is not None:
            self._notices += self._sync.run()
        return slot

    def open_toolbox(self, toolsets: tuple[str, ...]) -> Toolbox:
        """Return the Toolbox of the slot, for `call`."""
        slot = self.open_slot()
        if self._toolbox is None:
            self._toolbox = Toolbox(slot.wrapped, toolsets)
        return self._toolbox

    def take_notices(self) -> list[str]:
        """Return the notices about the slot that the model has not seen, once."""
        notices, self._notices = self._notices, []
        return notices

    def lose(self, error: ExecError) -> Exception:
        """Forget the slot, which is lost, and return the exception to raise."""
        with self._opening:
            slot, self._slot = self._slot, None
            self._first_cwd = self.cwd
        if slot is not None:
            logger.warning("slot %s of task %s is lost: %s", slot.id, self._task_id, error)
            self._recreated = True
            kept = "home and workspace are as they were last saved" if self._saved is not None else "all files are gone"
            self._notices.append(f"the sandbox was lost ({error}); this is a new one, {kept}")
            _release_beside(self._pool, slot)
        # hermes-agent takes an error whose text has "timeout" for a command that ran too long.
        return self._lost_error(re.sub("timeout", "time limit", str(error), flags=re.IGNORECASE))

    def cleanup(self) -> None:
        """Keep the files of a persistent task and release the slot. Has no effect the second time, or after a fork."""
        slot, self._slot = self._slot, None
        atexit.unregister(self._clean_up_at_exit)
        if slot is None or not self._pool.is_open:
            return
        if _in_event_loop():
            _release_beside(self._pool, slot)
            return
        if self._saved is not None and self._task_id != PROBE_TASK_ID:
            self._saved.save(slot)
        self._pool.release(slot)

    def __del__(self) -> None:
        slot, self._slot = getattr(self, "_slot", None), None
        if slot is not None:
            _release_beside(self._pool, slot)

    def _open_slot(self) -> Slot:
        with self._opening:
            if self._slot is not None and self._process_id != os.getpid():
                self._slot, self._recreated = None, True
                self._notices.append("a process that was forked has a slot of its own, without the files of the first")
            if self._slot is None:
                self._process_id = os.getpid()
                self._pool = self._options.open_pool()
                acquire = partial(self._pool.wrapped.acquire, image=self._image, owner=self._task_id)
                portal = self._pool.portal
                slot = Slot(run_interruptibly(portal, acquire, "waiting for a slot"), portal)
                try:
                    self._prepare(slot)
                except BaseException:
                    self._pool.release(slot)
                    raise
                self._slot = slot
                if self._saved is not None:
                    atexit.register(self._clean_up_at_exit)  # after the pool's own: it runs before the pool closes
            return self._slot

    def _prepare(self, slot: Slot) -> None:
        if self._saved is not None:
            self._saved.restore(slot)
        self._sync = FileSync(slot) if self._options.sync_files else None
        self._missing_cwd = "" if slot.home == DEFAULT_DIRECTORY else DEFAULT_DIRECTORY
        directory = self._directory(self._first_cwd, slot)
        try:
            slot.run(["true"], cwd=directory)
        except OSError:  # hermes-agent goes on to state the directory of the slot before
            self._missing_cwd, directory = self._first_cwd, None
        self._session: Session = slot.session(cwd=directory).open()
        self.cwd = self._session.cwd
        self._toolbox = None

    def _directory(self, cwd: str, slot: Slot) -> str | None:
        if cwd == self._missing_cwd:
            return None
        if cwd == "~" or cwd.startswith("~/"):
            return posixpath.join(slot.home, cwd[2:])
        return cwd or None

    def _run(
        self, command: str, cwd: str | None, stdin: str | None, limit_s: int, pieces: OutputEnd | None
    ) -> tuple[RunResult, str | None]:
        """Return the result, and the directory of the shell if the command could change it."""
        session = self._session.wrapped
        limit_bytes = WHOLE_BYTES if pieces is None else SHOWN_BYTES

        def run(method: Callable[..., Awaitable[RunResult]]) -> RunResult:
            work = partial(
                method,
                command,
                cwd=cwd,
                stdin=stdin,
                timeout_s=limit_s,
                merge_stderr=True,
                output_limit_bytes=limit_bytes,
                on_output=pieces and pieces.add,
            )
            return self.call(work, "terminal command running")

        if pieces is None or not self._running.acquire(blocking=False):
            return run(session.peek), None
        try:
            result = run(session.run)
            return result, session.cwd
        finally:
            self.cwd = session.cwd
            self._running.release()


class OutputEnd:
    """The end of the output so far, for a command that is interrupted."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, _stream: str, data: bytes) -> None:
        """Add a piece of either stream."""
        self._data += data
        del self._data[:-INTERRUPTED_BYTES]

    def result_of_interrupt(self) -> dict[str, Any]:
        """Return the result of the command."""
        text = bytes(self._data).decode("utf-8", "replace")
        return _result(f"{text}\n[Command interrupted]", INTERRUPTED_EXIT_CODE)


def _result(output: str, code: int) -> dict[str, Any]:
    """Return a result: hermes-agent's core reads `returncode`, its documentation names `exit_code`."""
    return {"output": output, "returncode": code, "exit_code": code}


def _clean_up(reference: weakref.ref[SlotEnvironment]) -> None:
    if (environment := reference()) is not None:
        environment.cleanup()


def _release_beside(pool: SandboxPool, slot: Slot) -> None:
    """Release a slot in a thread: a caller in the pool's event loop would wait for itself."""
    if pool.is_open:
        threading.Thread(target=pool.release, args=[slot], name="hermes-exec-release", daemon=True).start()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
