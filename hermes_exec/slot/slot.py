"""A slot: an isolated workspace in which an agent's commands run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from os import PathLike
from typing import cast
from weakref import ref

import anyio

from hermes_exec.aio.facade import SyncFacade
from hermes_exec.aio.tasks import ShieldedTask
from hermes_exec.checks import validate_commands, validate_count, validate_timeout
from hermes_exec.config.browser import BrowserConfig
from hermes_exec.errors import ConfigError, SlotClosed
from hermes_exec.results import Isolation, KillReceipt, ProcessInfo, RunResult
from hermes_exec.slot.answers import items, process_info, receipt
from hermes_exec.slot.checkpoint import (
    AnyCheckpoint,
    Checkpoint,
    CheckpointRequest,
    CheckpointStore,
    HasSavedState,
    Holds,
    ProcessPolicy,
    StateKey,
    States,
    plain_checkpoint,
    validate_holds,
    validate_process_policy,
)
from hermes_exec.slot.command import DEFAULT_OUTPUT_BYTES, DEFAULT_TIMEOUT_S, Command, Environment, command_params
from hermes_exec.slot.disk import TRIAL, check_disk
from hermes_exec.slot.files import Files
from hermes_exec.slot.network import Connection, ExposedPort, Forward, SlotListener, connect, wait_for_port
from hermes_exec.slot.process import Process, start
from hermes_exec.slot.run import OnOutput, Stdin, execute, first_exception
from hermes_exec.slot.scope import DISK_S, SlotScope
from hermes_exec.slot.session import Session

KILL_S = 60.0


class Slot:
    """A workspace with its own home, temporary directory and processes, acquired from a `SandboxPool`.

    `id` is unique over all pools of this process. `backend` is the backend's name, `image` the image, if any. `network`
    is False without a network. `own_loopback` is True if no other slot and
    no other program of the host reaches its loopback. `browser_rules` are the rules
    for its browser. `extra_env` are variables that every command, process and session gets besides its `env`; it may be
    set, and applies to everything that starts afterwards. Calls may run in parallel. After `pool.release`, every call
    and handle raises SlotClosed.

    Every call may raise SandboxDied (the sandbox has ended), OutcomeUnknown (sent, but the answer is lost), ChannelLost
    (not sent: it did not run), ProtocolError and SlotClosed.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the public name of the attribute
        scope: SlotScope,
        backend: str,
        image: str | None,
        reset: Callable[[], Awaitable[None]],
        checkpoints: CheckpointStore,
        network: bool = True,
        own_loopback: bool = False,
        browser: BrowserConfig | None = None,
    ) -> None:
        self.network = network
        self.own_loopback = own_loopback
        self.browser_rules = browser or BrowserConfig()
        self.extra_env: Environment = {}
        self.id = id
        self.backend = backend
        self.image = image
        self.files = Files(lambda: self._scope)
        self._latest = scope
        self._reset = reset
        self._resetting = False
        self._checkpoints = checkpoints
        self._companions: list[ref[HasSavedState]] = []  # blocking toolboxes are made in other threads
        self._restored_sessions: dict[str, Session] = {}
        self.process_ends = 0
        """How often `checkpoint(processes="end")` has ended the slot's processes."""

    def __repr__(self) -> str:
        state = f" closed ({self._scope.closed})" if self.closed else ""
        return f"<Slot {self.id} {self.isolation.level} in {self.backend} sandbox {self.sandbox[:12]}{state}>"

    @property
    def _scope(self) -> SlotScope:
        while (successor := self._latest.successor) is not None:
            self._latest = successor
        return self._latest

    @property
    def closed(self) -> bool:
        """Whether it was released or reclaimed."""
        return self._scope.final

    @property
    def resets(self) -> int:
        """How often it was reset, or restored to a checkpoint, since it was acquired."""
        return self._scope.resets

    @property
    def sandbox(self) -> str:
        """The backend's name of the sandbox."""
        return self._scope.sandbox

    @property
    def workspace(self) -> str:
        """The slot's own directory, empty after a reset."""
        return self._scope.facts.workspace

    @property
    def workdir(self) -> str:
        """Where calls start, and the base of relative paths: the workspace by default."""
        return self._scope.workdir

    @property
    def home(self) -> str:
        """The home directory of the slot's user."""
        return self._scope.facts.home

    @property
    def tmp(self) -> str:
        """The slot's directory for temporary files."""
        return self._scope.facts.tmp

    @property
    def uid(self) -> int:
        """The uid that commands run as. At `uid`, and at `namespaces` as root, each holder gets another one."""
        return self._scope.facts.uid

    @property
    def user(self) -> str:
        """The name of that user."""
        return self._scope.facts.user_name

    @property
    def shell(self) -> str | None:
        """The name of the shell that runs commands given as text; None if there is none."""
        return self._scope.facts.shell

    @property
    def isolation(self) -> Isolation:
        """The isolation of the slot, as probed."""
        return self._scope.facts.isolation

    @property
    def most_output_bytes(self) -> int:
        """The maximum of `output_limit_bytes` here: a quarter of the runner's memory, or 4 MiB if that is more."""
        return self._scope.channel.facts.most_output_bytes

    def _with_extra(self, env: Environment | None) -> Environment | None:
        return {**self.extra_env, **(env or {})} if self.extra_env else env

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        cwd: str | PathLike[str] | None = None,
        env: Environment | None = None,
        stdin: Stdin = None,
        user: str | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_BYTES,
        merge_stderr: bool = False,
        on_output: OnOutput | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run a command and return its result.

        A failure, a timeout and a missing program are results, and so is a used-up limit of the slot (exit code 126).
        The call returns when the command itself ends; its background processes live until the slot is reset. If the
        call is cancelled, the whole tree is ended, which takes at most 5 s.

        Args:
            command: A `str` runs in the slot's best shell (bash, else sh) without login or rc files; a sequence is a
                program and its arguments, without a shell.
            timeout_s: Seconds from the start of the process (default 180; None: no limit). Then TERM, and after 0.5 s
                KILL, to the process and its descendants: `timed_out`, exit code 128 + signal, the output so far. The
                call takes at most 5 s more.
            cwd: Directory to start in, `workdir` by default; a relative path is relative to `workdir`.
            env: Variables in addition to the slot's own.
            stdin: Text (as UTF-8), bytes or an async iterable of bytes; None is /dev/null. The call does not fail if
                the command does not read it.
            user: The user to run as: by default the slot's own; another (a name or number, optionally with `:group`)
                only in a whole sandbox or with an own root. HOME, USER, LOGNAME and groups are then this user's.
            output_limit_bytes: Bytes kept of stdout, of stderr and of both together (default 1 MiB each, at most a
                quarter of the pool's `runner_memory_mb`, less if others use that up): 40 % head, 60 % tail. The whole
                stream, or its first 64 MiB, is then in a file in the slot (`spill_path`).
            merge_stderr: Use one pipe for stdout and stderr, for an exact order.
            on_output: Callback for each piece of output, with "stdout" or "stderr"; may be async. A slow one slows the
                command; an exception ends the command and is raised here.
            check: Raise CommandFailed if the command does not succeed.

        Raises:
            ConfigError: If an argument is invalid, or command, arguments and `env` are larger than 32 MiB; nothing ran.
            FileNotFoundError, NotADirectoryError, PermissionError: If `cwd` cannot be entered; nothing ran.
            ExecError: If this machine, or other slots of the sandbox, left no room for a process; nothing ran.
            CommandFailed: If `check` is set and the command failed.
        """
        params = command_params(
            self._scope,
            command,
            cwd=cwd,
            env=self._with_extra(env),
            user=user,
            output_limit_bytes=output_limit_bytes,
            merge_stderr=merge_stderr,
        )
        result = await execute(self._scope, params, stdin=stdin, timeout_s=timeout_s, on_output=on_output)
        return result.check() if check else result

    async def run_many(
        self,
        commands: Iterable[Command],
        limit: int | None = None,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        cwd: str | PathLike[str] | None = None,
        env: Environment | None = None,
        user: str | None = None,
        stdin: Stdin = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_BYTES,
        merge_stderr: bool = False,
        on_output: OnOutput | None = None,
        check: bool = False,
    ) -> list[RunResult]:
        """Run commands concurrently, at most `limit` at once (None: all), and return their results in order.

        Arguments and errors are as in `run`, for each command. `stdin` must not be an iterable, because each command
        gets it. `on_output` is called with the output of all. The first call that raises ends the others.
        """
        if isinstance(commands, str | bytes):
            raise ConfigError("commands must be a list of commands, not one command")
        jobs = list(commands)
        if limit is not None:
            validate_count(limit, "limit")
        if isinstance(stdin, AsyncIterable):
            raise ConfigError("stdin of run_many is text or bytes: an iterable can be read only once")
        results: list[RunResult | None] = [None] * len(jobs)
        at_once = anyio.Semaphore(limit if limit is not None else max(1, len(jobs)))

        async def run_one(index: int) -> None:
            async with at_once:
                results[index] = await self.run(
                    jobs[index],
                    timeout_s=timeout_s,
                    cwd=cwd,
                    env=env,
                    user=user,
                    stdin=stdin,
                    output_limit_bytes=output_limit_bytes,
                    merge_stderr=merge_stderr,
                    on_output=on_output,
                    check=check,
                )

        for job in jobs:
            command_params(self._scope, job, cwd=cwd, env=env, user=user, output_limit_bytes=output_limit_bytes)
        try:
            async with anyio.create_task_group() as tasks:
                for index in range(len(jobs)):
                    tasks.start_soon(run_one, index)
        except BaseExceptionGroup as group:
            raise first_exception(group) from None
        return cast("list[RunResult]", results)

    async def spawn(
        self,
        command: Command,
        *,
        stdin: bool = False,
        pty: bool | tuple[int, int] | None = None,
        cwd: str | PathLike[str] | None = None,
        env: Environment | None = None,
        user: str | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_BYTES,
        merge_stderr: bool = False,
        tag: str | None = None,
    ) -> Process:
        """Start a process in the background. It ends by itself, by `kill`, or when the slot is reset or released.

        Args:
            command: As in `run`.
            stdin: True opens a pipe that `process.stdin` writes to; otherwise stdin is /dev/null.
            pty: A terminal for stdin, stdout and stderr: True (24 rows, 80 columns) or (rows, columns). TERM is then
                `xterm-256color`, unless the slot's environment or `env` sets it.
            cwd: As in `run`.
            env: As in `run`.
            user: As in `run`.
            output_limit_bytes: At least so many of the last bytes of each stream are kept for `process.output`.
            merge_stderr: As in `run`.
            tag: A word of the caller's, by which `spawned` finds the process again.

        Raises:
            ConfigError, FileNotFoundError, NotADirectoryError, PermissionError, ExecError: As in `run`. A program that
                cannot be started is a process that has ended, with the exit codes of `run`.
        """
        params = command_params(
            self._scope,
            command,
            cwd=cwd,
            env=self._with_extra(env),
            user=user,
            output_limit_bytes=output_limit_bytes,
            merge_stderr=merge_stderr,
        )
        text = command if isinstance(command, str) else " ".join(map(os.fsdecode, command))
        return await start(self._scope, params, text, stdin=stdin, pty=pty, tag=tag)

    async def spawned(self) -> list[Process]:
        """Return handles for the processes that `spawn` started since the last reset, with the 64 that ended last."""
        scope = self._scope
        answer = await scope.call("proc.list", {}, timeout_s=KILL_S)
        return [Process.from_entry(scope, entry) for entry in items(answer, "processes")]

    def session(
        self,
        *,
        cwd: str | PathLike[str] | None = None,
        env: Environment | None = None,
        like: Session | SyncFacade[Session] | str | None = None,
    ) -> Session:
        """Return a shell whose state lasts between its commands. It starts at its first command, or by `async with`.

        `like` is a session of another slot, of which this slot was acquired as a fork, or its id in
        `Checkpoint.sessions`: the returned session continues from its state in the checkpoint.

        Raises:
            ConfigError: If the checkpoint of this slot does not hold `like`, or `cwd` or `env` is given too.
            RuntimeError: If the pool's event loop does not run in this thread.
        """
        self._scope.check()
        if like is not None:
            if cwd is not None or env is not None:
                raise ConfigError("like= keeps directory and variables of the session: give cwd= and env= to its calls")
            return self._find_session(like.wrapped if isinstance(like, SyncFacade) else like)
        return Session(self._scope, self._scope.facts, self.workdir, cwd, self._with_extra(env))

    def _find_session(self, like: Session | str) -> Session:
        if isinstance(like, Session) and like.belongs_to(self._scope):
            return like
        session_id = like if isinstance(like, str) else like.id
        handle = self._restored_sessions.get(session_id or "")
        if handle is not None and handle.belongs_to(self._scope):
            return handle
        session = Session.from_checkpoint(self._scope, session_id) if session_id is not None else None
        if session is None or session_id is None:
            raise ConfigError(
                "the checkpoint of this slot does not hold that session: start the session before "
                "`slot.checkpoint()`, and acquire the slot with from_="
            )
        self._restored_sessions[session_id] = session
        return session

    async def processes(self) -> list[ProcessInfo]:
        """Return all processes that run in the slot now."""
        answer = await self._scope.call("slot.processes", {}, timeout_s=KILL_S)
        return [process_info(entry) for entry in items(answer, "processes")]

    async def connect(self, port: int, host: str = "127.0.0.1", wait_s: float = 0) -> Connection:
        """Connect to a TCP port inside the slot and return the connection as a byte stream.

        While nothing listens, wait up to `wait_s` seconds for a server that was just started.

        Raises:
            ConnectionRefusedError, TimeoutError, OSError: If the connection fails; with the address.
        """
        return await connect(self._scope, port, host, wait_s)

    async def wait_for_port(self, port: int, timeout_s: float, host: str = "127.0.0.1") -> None:
        """Wait until a TCP port inside the slot accepts a connection, which is closed at once.

        Raises:
            TimeoutError: If nothing listened within `timeout_s` seconds.
            OSError: If the connection fails otherwise; with the address.
        """
        await wait_for_port(self._scope, port, timeout_s, host)

    def forward(self, port: int, local_port: int = 0, host: str = "127.0.0.1", wait_s: float = 0) -> Forward:
        """Return an async context manager that forwards a port on this host's loopback to a port inside the slot.

        `local_port` 0 selects a free port, which is then in `.port`. Each client waits for a server as with `connect`.
        """
        return Forward(self._scope, port, local_port, host, wait_s)

    def listen(
        self, path: str | PathLike[str] | None = None, *, port: int | None = None, shared_loopback: bool = False
    ) -> SlotListener:
        """Return an async context manager that listens inside the slot, on a UNIX socket or on a TCP port.

        Its `accept` returns each connection as a byte stream. It needs no network.

        Args:
            path: Path of a UNIX socket. Only the slot's own user can connect.
            port: Port on the slot's 127.0.0.1 instead; 0 selects a free one, which is then in `.port`.
            shared_loopback: Whether others may reach the port where `own_loopback` is False.

        Raises:
            ConfigError: If there is not exactly one of path and port, or without `shared_loopback` if others share the
                loopback.
            OSError: On entering, if the path exists or is too long (103 bytes), the port is in use, and so on.
        """
        if port is not None:
            self._check_loopback(shared_loopback)
        return SlotListener(self._scope, path, port)

    def expose(self, host: str, port: int, slot_port: int = 0, *, shared_loopback: bool = False) -> ExposedPort:
        """Return an async context manager that forwards a port on the slot's 127.0.0.1 to a service of the driver's
        network.

        `slot_port` 0 selects a free port, which is then in `.port`. It needs no network in the slot. `shared_loopback`
        and errors are as with `listen`.
        """
        self._check_loopback(shared_loopback)
        return ExposedPort(self._scope, host, port, slot_port)

    def _check_loopback(self, shared: bool) -> None:
        if not (shared or self.own_loopback):
            raise ConfigError(
                "other slots or programs reach ports on this slot's loopback: use network=False where slots have the "
                "level namespaces, one slot for each container, or shared_loopback=True with a key that clients send"
            )

    async def kill_all(self) -> KillReceipt:
        """End every process of the slot and return a receipt; files stay. Remaining processes quarantine the slot."""
        scope = self._scope
        answer = await scope.call("slot.kill_all", {}, timeout_s=KILL_S)
        killed = receipt(answer.get("killed"))
        scope.check_receipt(killed)
        return killed

    @property
    def disk_full(self) -> bool:
        """Whether a disk of the slot was nearly full when a command ended, or refused a write, since `check_disk`."""
        return self._scope.disk_full

    @property
    def disk_filled_by_others(self) -> bool:
        """Whether others caused `disk_full`: the slot's own files were few."""
        return self._scope.filled_by_others is not None

    async def note_prepared(self) -> None:
        """Mark the slot as prepared: `check_disk` does not count the existing files as its own."""
        await self._scope.call("slot.disk", {"prepared": True}, timeout_s=DISK_S)

    async def check_disk(self) -> None:
        """Raise HostDiskFull if others have filled a disk of the slot: its own files are few.

        The disk is nearly full, or a quota used up, now or at the end of a command or a refused write since the last
        call. Nothing is raised for a sandbox that its own holder ended.
        """
        await check_disk(self._scope, self.files, f"{self.tmp}/{TRIAL}")

    async def reset(self) -> None:
        """End everything in the slot and empty workspace, home and tmp; `id` and the files of the image stay. A slot
        that was acquired from a checkpoint returns to the checkpoint.

        Earlier processes, sessions, forwards, connections and calls under way raise SlotClosed. The holder of an
        exclusive sandbox gets another one, as in `SandboxPool.acquire`: `sandbox` changes.

        Raises:
            ExecError: If the slot could not be proven clean; it is quarantined and closed.
            AcquireTimeout, LaunchError: If there was no other sandbox; the slot is closed.
        """
        await self._renew("the slot was reset", self._reset)

    async def checkpoint(
        self,
        *,
        processes: ProcessPolicy = "keep",
        holds: Holds | None = None,
        on_fork: str | Sequence[str] | None = None,
        temporary: bool = False,
        timeout_s: float | None = None,
    ) -> Checkpoint:
        """Keep the files, the working directory and the shell sessions of this moment as a checkpoint.

        Of a slot with a root of its own, a checkpoint holds the whole root. Small changes are copied, which ends
        nothing. Large ones are frozen: they become a read-only layer below the slot, in a time that does not depend on
        their size. If processes run, they are stopped, the changes are copied whatever their size, and the processes
        continue. If the slot has files in memory (/dev/shm), its changes are copied too. The checkpoint holds neither.

        Of another slot, it holds the directories that only this slot has: workspace, home and temporary directories.
        They are copied whole each time.

        Args:
            processes: What to do about processes and connections of the slot: "keep" them, "refuse" the checkpoint with
                SlotBusy, or "end" them, which makes the checkpoint independent of the size of the changes. With its
                processes, a slot with a root of its own then loses its files in memory and System V objects.
            holds: "root" or "directories". None is the root if the slot has its own, or the directories on `local` and
                `ssh` at the isolation level `namespaces`. Elsewhere only "directories" is possible, and has to be
                given: slots can also write to other directories there, which the checkpoint does not hold.
            on_fork: Shell commands that start services again, such as "redis-server &". They run in each slot that is
                acquired from the checkpoint or reset to it, and after each `restore`, before the call returns. They
                have the rights of `slot_setup` and fail as it does: LaunchError, cause `task`, and no slot.
            temporary: Whether it will be dropped soon: `checkpoint_disk_mb` does not bound it then.
            timeout_s: Longest time; None for no limit.

        Raises:
            ConfigError: If the slot cannot have such a checkpoint, because it has no root of its own, is the only slot
                of its container, or has a limit of its disk; the message names the settings.
            SlotBusy: If a command or file call is under way, or a process runs and `processes` is "refuse". Nothing has
                changed.
            OSError: ENOSPC if the disk has no room for it, or if it exceeds `checkpoint_disk_mb`; EFBIG for a copy of a
                directory with more than about 200,000 directories. The slot and its processes continue.
            TimeoutError: If it took longer than `timeout_s`; there is no checkpoint.
        """
        self._scope.check()
        processes, timeout_s = validate_process_policy(processes), validate_timeout(timeout_s)
        holds, commands = validate_holds(holds), validate_commands(on_fork, "on_fork")
        companions = [companion for each in list(self._companions) if (companion := each()) is not None]
        states = States({each.state_key: each.save_state() for each in companions})
        request = CheckpointRequest(processes, holds, commands, temporary, timeout_s, states)
        checkpoint = await self._checkpoints.create(request)
        self.process_ends += checkpoint.killed is not None
        return checkpoint

    async def restore(self, checkpoint: AnyCheckpoint) -> None:
        """Return the slot to a checkpoint of a slot with the same image: files, working directory and shell sessions.

        All processes and connections end. Sessions that the checkpoint holds continue with their state of that time.
        Other sessions, and calls under way, raise SlotClosed. `id` stays.

        Raises:
            ConfigError: If the slot has another image or `setup`, or no root of its own.
            CheckpointLost: If the sandboxes with the checkpoint have ended.
            SlotClosed: If the checkpoint was dropped.
            OSError: If the checkpoint cannot be copied to the sandbox of the slot (no room, directories that are nested
                too deeply); the slot continues.
            LaunchError: If a command of its `on_fork` failed, or the disk has no room for the checkpoint's directories,
                which are copied into the slot; the slot is closed.
            ExecError: If the slot could not be proven clean; it is quarantined and closed.
        """
        self._scope.check()
        plain = plain_checkpoint(checkpoint)
        async with self._checkpoints.use(plain):
            await self._renew("the slot was restored to a checkpoint", lambda: self._checkpoints.restore(plain))

    async def _renew(self, why: str, renew: Callable[[], Awaitable[None]]) -> None:
        """End the calls under way, and wait for `renew`, also if the caller is cancelled."""
        self._scope.check()
        if self._resetting:
            raise SlotClosed("the slot is being reset")
        self._resetting = True

        async def work() -> None:
            try:
                with anyio.CancelScope(shield=True):
                    await self._scope.close(why, final=False)
                await renew()
            finally:
                self._resetting = False

        await ShieldedTask(work).wait()

    def keep_state_of(self, companion: HasSavedState) -> None:
        """Save the state of an object beside the slot with each checkpoint, as long as the object exists."""
        self._companions.append(ref(companion, self._companions.remove))

    def find_saved_state(self, key: StateKey) -> object | None:
        """Return the state with this key in the checkpoint that the slot was set to; None if it has none."""
        start = self._scope.start
        return None if start is None else start.states.get(key)


AnySlot = Slot | SyncFacade[Slot]
"""A slot, or its blocking form."""
