"""A shell whose state lasts from one command to the next."""

from __future__ import annotations

import posixpath
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from os import PathLike
from types import TracebackType
from typing import Self

import anyio

from hermes_exec.channel.encoding import from_wire
from hermes_exec.checks import validate_timeout
from hermes_exec.errors import ConfigError, SlotClosed
from hermes_exec.results import RunResult
from hermes_exec.slot.answers import SlotFacts, text
from hermes_exec.slot.command import DEFAULT_OUTPUT_BYTES, DEFAULT_TIMEOUT_S, Environment, command_params
from hermes_exec.slot.process import Process, start
from hermes_exec.slot.run import OnOutput, Stdin, execute
from hermes_exec.slot.scope import SlotScope


class Session:
    """Commands that share the state of a shell: cwd, variables (exported or not), functions, aliases, options, umask.

    The state is the one after the last command. It survives `exit`, failures, timeouts whose TERM the shell could
    handle, and commands that close their output or lower their own limits. A command that is killed outright, or
    replaces its shell by `exec`, leaves the state and the directory from before it. `RunResult.state_lost` is the
    reason where a state could not be kept. Positional parameters, `$?`, open files, limits (`ulimit`) and traps belong
    to each command. Calls of one session run in order of arrival, except `peek`. It ends with the slot, or with
    `aclose`.
    """

    def __init__(
        self,
        scope: SlotScope,
        facts: SlotFacts,
        workdir: str,
        cwd: str | PathLike[str] | None,
        env: Environment | None,
    ) -> None:
        self.id: str | None = None
        """Its name in `Checkpoint.sessions`; None before it has started."""
        self.shell = facts.session_shell
        """The shell's name; None in an image without a shell, where sessions are not available."""
        self.keeps = facts.session_keeps
        """The kinds of state that this shell can keep; dash and busybox cannot keep functions."""
        self._latest = self._newest = scope
        self._cwd = workdir
        self._checked = command_params(scope, "", cwd=cwd, env=env)
        self._wire_id: str | None = None
        self._opening = anyio.Lock()
        self._busy = False
        self._line: deque[anyio.Event] = deque()
        self._closed = False

    @classmethod
    def from_checkpoint(cls, scope: SlotScope, session_id: str) -> Self | None:
        """Return the session of this id that a slot got from its checkpoint; None if there is none."""
        if scope.start is None or session_id not in scope.start.sessions:
            return None
        session = cls(scope, scope.facts, scope.workdir, None, None)
        session.id = session_id
        session._wire_id, session._cwd = scope.start.sessions[session_id]
        return session

    @property
    def cwd(self) -> str:
        """The directory in which the next command starts."""
        _ = self._scope
        return self._cwd

    @property
    def _scope(self) -> SlotScope:
        """The newest scope of the slot if it holds the session, because the slot was restored to a checkpoint of it;
        otherwise the last one that held the session, which has ended.
        """
        newest = self._newest
        while newest.successor is not None:
            newest = newest.successor
        if newest is not self._newest:
            self._newest, start = newest, newest.start
            if start is not None and self.id is not None and self.id in start.sessions:
                self._latest, self._closed = newest, False
                self._wire_id, self._cwd = start.sessions[self.id]
        return self._latest

    def belongs_to(self, scope: SlotScope) -> bool:
        """Return whether it is a session of this scope."""
        return self._scope is scope

    async def open(self) -> Self:
        """Start the session; otherwise the first command starts it.

        Raises:
            ConfigError: If the slot has no shell, or fewer open files than a shell needs (16).
        """
        async with self._turn():
            return self

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_BYTES,
        merge_stderr: bool = False,
        on_output: OnOutput | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run shell text in the session and return its result.

        Arguments are as in `Slot.run`, but `cwd` becomes part of the state, and `env` applies to this command only. The
        timeout does not count the wait for earlier commands of the session.

        Raises:
            OSError: If the directory cannot be entered, for example because it was removed; nothing ran. If it is the
                session's own directory, the next command starts in `slot.workdir`. Otherwise as `Slot.run`.
        """
        if not isinstance(command, str):
            raise ConfigError("a session runs shell text; use slot.run for a list of arguments")
        timeout_s = validate_timeout(timeout_s)
        params = command_params(
            self._scope, command, cwd=cwd, env=env, output_limit_bytes=output_limit_bytes, merge_stderr=merge_stderr
        )
        async with self._turn():
            params["session"] = self._wire_id
            answer: dict[str, object] = {}
            try:
                result = await execute(
                    self._scope, params, stdin=stdin, timeout_s=timeout_s, on_output=on_output, on_answer=answer.update
                )
            finally:
                if answer.get("cwd") is not None:
                    self._cwd = from_wire(answer["cwd"], "cwd")
        return result.check() if check else result

    async def peek(
        self,
        command: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_BYTES,
        merge_stderr: bool = False,
        on_output: OnOutput | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run shell text beside the session, from its state, and return its result.

        It starts at once, also while a command of the session runs. It gets the state after the last command that has
        ended, and does not change it. Arguments are as in `run`; `cwd` too applies to this command only.

        Raises:
            OSError: If the directory cannot be entered; nothing ran. Otherwise as `Slot.run`.
        """
        if not isinstance(command, str):
            raise ConfigError("a session runs shell text; use slot.run for a list of arguments")
        params = command_params(
            self._scope, command, cwd=cwd, env=env, output_limit_bytes=output_limit_bytes, merge_stderr=merge_stderr
        )
        self._check()
        await self._ensure_open()
        params |= {"session": self._wire_id, "peek": True}
        result = await execute(self._scope, params, stdin=stdin, timeout_s=timeout_s, on_output=on_output)
        return result.check() if check else result

    async def spawn(
        self,
        command: str,
        *,
        stdin: bool = False,
        pty: bool | tuple[int, int] = False,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_BYTES,
        merge_stderr: bool = False,
        tag: str | None = None,
    ) -> Process:
        """Start a background process from the session's state; it does not change the session.

        Arguments and errors as in `Slot.spawn`.
        """
        if not isinstance(command, str):
            raise ConfigError("a session runs shell text; use slot.spawn for a list of arguments")
        params = command_params(
            self._scope, command, cwd=cwd, env=env, output_limit_bytes=output_limit_bytes, merge_stderr=merge_stderr
        )
        async with self._turn():
            params["session"] = self._wire_id
            return await start(self._scope, params, command, stdin=stdin, pty=pty, tag=tag)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for earlier commands, then hold the session exclusively."""
        self._check()
        since: float | None = None
        if self._busy:
            turn, since = anyio.Event(), time.monotonic()
            self._line.append(turn)
            try:
                with self._scope.cancel_scope():
                    await turn.wait()
            except BaseException:
                if turn in self._line:
                    self._line.remove(turn)
                else:
                    self._pass_on()
                raise
        self._busy = True
        try:
            self._check()
            await self._ensure_open()
            if since is not None:
                self._scope.channel.set_waiting_since(since)
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the session to the next waiting call; a later call cannot get in between."""
        if self._line:
            self._line.popleft().set()
        else:
            self._busy = False

    def _check(self) -> None:
        self._scope.check()
        if self._closed:
            raise SlotClosed("the session was closed")

    async def _ensure_open(self) -> None:
        if self._wire_id is not None:
            return
        async with self._opening:
            self._check()
            if self._wire_id is None:
                await self._open()

    async def _open(self) -> None:
        params: dict[str, object] = {name: self._checked[name] for name in ("cwd", "env") if name in self._checked}
        answer = await self._scope.call("session.open", params, timeout_s=60)
        self.id = self._wire_id = text(answer, "session")
        if "cwd" in answer:
            self._cwd = from_wire(answer["cwd"], "cwd")
        elif "cwd" in params:
            self._cwd = posixpath.join(self._cwd, from_wire(params["cwd"], "cwd"))

    async def aclose(self) -> None:
        """End the session; its background processes continue. May be called more than once."""
        scope = self._scope
        if self._closed:
            return
        self._closed = True
        async with self._opening:  # the first call may be opening it
            if self._wire_id is not None and scope.closed is None:
                with suppress(SlotClosed):
                    await scope.call("session.close", {"session": self._wire_id}, timeout_s=30)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
