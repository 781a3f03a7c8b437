"""The blocking interface: the same objects, names and arguments as the async one, with values instead of awaitables.

`with SandboxPool(...) as pool:` returns these objects. All pools of a process share one event loop thread, and every
object may be used from several threads. Callbacks (`on_output`, `on_event`) run in that thread and must not call back
into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio import EndOfStream
from anyio.from_thread import BlockingPortal

from hermes_exec.aio.facade import FacadeMember, SyncContext, SyncFacade, blocking, closing, context, wraps
from hermes_exec.aio.portal import Portals, call, in_event_loop, may_leave
from hermes_exec.config import PoolConfig, ProfileConfig
from hermes_exec.errors import SlotClosed
from hermes_exec.pool import events, pool
from hermes_exec.results import Isolation, KillReceipt, PoolEvent, PoolStats
from hermes_exec.slot import checkpoint, files, network, process, session, slot

T = TypeVar("T")

PORTALS = Portals()


class Output(SyncFacade[process.ProcessOutput]):
    """Blocking form of `ProcessOutput`; iterating yields pieces until the end."""

    receive = blocking(process.ProcessOutput.receive)
    aclose = closing(process.ProcessOutput.aclose)
    close = aclose
    lost_bytes = FacadeMember[process.ProcessOutput, int](lambda output: output.wrapped.lost_bytes)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                yield self.receive()
            except EndOfStream:
                return


class Input(SyncFacade[process.ProcessInput]):
    """Blocking form of `ProcessInput`."""

    send = blocking(process.ProcessInput.send)
    send_within = blocking(process.ProcessInput.send_within)
    aclose = closing(process.ProcessInput.aclose)
    close = aclose


class Process(SyncFacade[process.Process]):
    """Blocking form of `hermes_exec.Process`."""

    id = FacadeMember[process.Process, str](lambda facade: facade.wrapped.id)
    pid = FacadeMember[process.Process, int](lambda facade: facade.wrapped.pid)
    command = FacadeMember[process.Process, str](lambda facade: facade.wrapped.command)
    cwd = FacadeMember[process.Process, str | None](lambda facade: facade.wrapped.cwd)
    tag = FacadeMember[process.Process, str | None](lambda facade: facade.wrapped.tag)
    pty = FacadeMember[process.Process, bool](lambda facade: facade.wrapped.pty)
    started_at = FacadeMember[process.Process, float](lambda facade: facade.wrapped.started_at)
    age_s = FacadeMember[process.Process, float](lambda facade: facade.wrapped.age_s)
    ended_at = FacadeMember[process.Process, float | None](lambda facade: facade.wrapped.ended_at)
    exit_code = FacadeMember[process.Process, int | None](lambda facade: facade.wrapped.exit_code)
    stdout_bytes = FacadeMember[process.Process, int](lambda facade: facade.wrapped.stdout_bytes)
    stderr_bytes = FacadeMember[process.Process, int](lambda facade: facade.wrapped.stderr_bytes)
    wait = blocking(process.Process.wait)
    signal = blocking(process.Process.signal)
    kill = blocking(process.Process.kill)
    resize = blocking(process.Process.resize)
    output = blocking(process.Process.output)
    aclose = closing(process.Process.aclose)
    close = aclose

    @property
    def stdin(self) -> Input | None:
        """Standard input, if it was requested."""
        stream = self.wrapped.stdin
        return None if stream is None else Input(stream, self.portal)

    @property
    def stdout(self) -> Output:
        """Standard output."""
        return Output(self.wrapped.stdout, self.portal)

    @property
    def stderr(self) -> Output | None:
        """Standard error; a PTY has none."""
        stream = self.wrapped.stderr
        return None if stream is None else Output(stream, self.portal)


def _wrap_processes(processes: list[process.Process], portal: BlockingPortal) -> list[Process]:
    return [Process(process, portal) for process in processes]


class Session(SyncFacade[session.Session]):
    """Blocking form of `hermes_exec.Session`."""

    id = FacadeMember[session.Session, str | None](lambda facade: facade.wrapped.id)
    cwd = FacadeMember[session.Session, str](lambda facade: facade.wrapped.cwd)
    shell = FacadeMember[session.Session, str | None](lambda facade: facade.wrapped.shell)
    keeps = FacadeMember[session.Session, tuple[str, ...]](lambda facade: facade.wrapped.keeps)
    run = blocking(session.Session.run)
    peek = blocking(session.Session.peek)
    spawn = wraps(session.Session.spawn, Process)
    aclose = closing(session.Session.aclose)
    close = aclose

    def open(self) -> Self:
        """Start the session, as `hermes_exec.Session.open`."""
        call(self.portal, self.wrapped.open)
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Connection(SyncFacade[network.Connection]):
    """Blocking form of `hermes_exec.Connection`; iterating yields pieces until the end."""

    receive = blocking(network.Connection.receive)
    send = blocking(network.Connection.send)
    send_eof = blocking(network.Connection.send_eof)
    aclose = closing(network.Connection.aclose)
    close = aclose

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                yield self.receive()
            except EndOfStream:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SlotListener(SyncFacade[network.SlotListener]):
    """Blocking form of `hermes_exec.slot.network.SlotListener`."""

    path = FacadeMember[network.SlotListener, str](lambda facade: facade.wrapped.path)
    port = FacadeMember[network.SlotListener, int](lambda facade: facade.wrapped.port)
    accept = wraps(network.SlotListener.accept, Connection)


class Files(SyncFacade[files.Files]):
    """Blocking form of `hermes_exec.Files`."""

    read_bytes = blocking(files.Files.read_bytes)
    read_text = blocking(files.Files.read_text)
    write_bytes = blocking(files.Files.write_bytes)
    write_text = blocking(files.Files.write_text)
    stat = blocking(files.Files.stat)
    exists = blocking(files.Files.exists)
    list = blocking(files.Files.list)
    mkdir = blocking(files.Files.mkdir)
    remove = blocking(files.Files.remove)
    move = blocking(files.Files.move)
    copy = blocking(files.Files.copy)
    chmod = blocking(files.Files.chmod)
    upload = blocking(files.Files.upload)
    download = blocking(files.Files.download)
    save = blocking(files.Files.save)
    restore = blocking(files.Files.restore)
    search = blocking(files.Files.search)
    glob = blocking(files.Files.glob)


class Checkpoint(SyncFacade[checkpoint.Checkpoint]):
    """Blocking form of `hermes_exec.Checkpoint`."""

    id = FacadeMember[checkpoint.Checkpoint, str](lambda facade: facade.wrapped.id)
    holds = FacadeMember[checkpoint.Checkpoint, str](lambda facade: facade.wrapped.holds)
    left_out = FacadeMember[checkpoint.Checkpoint, tuple[str, ...]](lambda facade: facade.wrapped.left_out)
    image = FacadeMember[checkpoint.Checkpoint, str | None](lambda facade: facade.wrapped.image)
    workdir = FacadeMember[checkpoint.Checkpoint, str](lambda facade: facade.wrapped.workdir)
    sessions = FacadeMember[checkpoint.Checkpoint, Mapping[str, str]](lambda facade: facade.wrapped.sessions)
    killed = FacadeMember[checkpoint.Checkpoint, KillReceipt | None](lambda facade: facade.wrapped.killed)
    copied = FacadeMember[checkpoint.Checkpoint, bool](lambda facade: facade.wrapped.copied)
    on_fork = FacadeMember[checkpoint.Checkpoint, tuple[str, ...]](lambda facade: facade.wrapped.on_fork)
    dropped = FacadeMember[checkpoint.Checkpoint, bool](lambda facade: facade.wrapped.dropped)
    sizes = blocking(checkpoint.Checkpoint.sizes)
    save = blocking(checkpoint.Checkpoint.save)
    export_oci = blocking(checkpoint.Checkpoint.export_oci)
    drop = closing(checkpoint.Checkpoint.drop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()


async def _drop(_: object, result: checkpoint.Checkpoint) -> None:
    await result.drop()


class Slot(SyncFacade[slot.Slot]):
    """Blocking form of `hermes_exec.Slot`."""

    id = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.id)
    workspace = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.workspace)
    workdir = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.workdir)
    home = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.home)
    tmp = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.tmp)
    uid = FacadeMember[slot.Slot, int](lambda facade: facade.wrapped.uid)
    user = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.user)
    shell = FacadeMember[slot.Slot, str | None](lambda facade: facade.wrapped.shell)
    isolation = FacadeMember[slot.Slot, Isolation](lambda facade: facade.wrapped.isolation)
    most_output_bytes = FacadeMember[slot.Slot, int](lambda facade: facade.wrapped.most_output_bytes)
    sandbox = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.sandbox)
    backend = FacadeMember[slot.Slot, str](lambda facade: facade.wrapped.backend)
    image = FacadeMember[slot.Slot, str | None](lambda facade: facade.wrapped.image)
    resets = FacadeMember[slot.Slot, int](lambda facade: facade.wrapped.resets)
    closed = FacadeMember[slot.Slot, bool](lambda facade: facade.wrapped.closed)
    disk_full = FacadeMember[slot.Slot, bool](lambda facade: facade.wrapped.disk_full)
    disk_filled_by_others = FacadeMember[slot.Slot, bool](lambda facade: facade.wrapped.disk_filled_by_others)
    run = blocking(slot.Slot.run)
    run_many = blocking(slot.Slot.run_many)
    spawn = wraps(slot.Slot.spawn, Process)
    spawned = wraps(slot.Slot.spawned, _wrap_processes)
    session = wraps(slot.Slot.session, Session)
    processes = blocking(slot.Slot.processes)
    connect = wraps(slot.Slot.connect, Connection)
    wait_for_port = blocking(slot.Slot.wait_for_port)
    kill_all = blocking(slot.Slot.kill_all)
    note_prepared = blocking(slot.Slot.note_prepared)
    check_disk = blocking(slot.Slot.check_disk)
    reset = blocking(slot.Slot.reset)
    checkpoint = wraps(slot.Slot.checkpoint, Checkpoint, undo=_drop)
    restore = blocking(slot.Slot.restore)

    @property
    def files(self) -> Files:
        """The files of the slot."""
        return Files(self.wrapped.files, self.portal)

    forward = context(slot.Slot.forward, lambda forward, _: forward)
    listen = context(slot.Slot.listen, SlotListener)
    expose = context(slot.Slot.expose, lambda exposed, _: exposed)


class Events(SyncFacade[events.Events], Iterator[PoolEvent]):
    """Blocking form of `hermes_exec.pool.events.Events`, a plain iterator."""

    dropped = FacadeMember[events.Events, int](lambda facade: facade.wrapped.dropped)
    aclose = closing(events.Events.aclose)
    close = aclose

    def __next__(self) -> PoolEvent:
        try:
            return call(self.portal, self.wrapped.__anext__)
        except (StopAsyncIteration, SlotClosed):
            raise StopIteration from None


def _wrap_slots(slots: list[slot.Slot], portal: BlockingPortal) -> list[Slot]:
    return [Slot(slot, portal) for slot in slots]


class SandboxPool(SyncFacade[pool.SandboxPool]):
    """Blocking form of `hermes_exec.SandboxPool`, entered by plain `with`."""

    run_id = FacadeMember[pool.SandboxPool, str](lambda facade: facade.wrapped.run_id)
    is_open = FacadeMember[pool.SandboxPool, bool](lambda facade: facade.wrapped.is_open)
    slot = context(pool.SandboxPool.slot, Slot)
    slots = context(pool.SandboxPool.slots, _wrap_slots)
    fork = context(pool.SandboxPool.fork, _wrap_slots)
    acquire = wraps(pool.SandboxPool.acquire, Slot, undo=pool.SandboxPool.release)
    load = wraps(pool.SandboxPool.load, Checkpoint, undo=_drop)
    abilities = blocking(pool.SandboxPool.abilities)
    prewarm = blocking(pool.SandboxPool.prewarm)
    prefetch = blocking(pool.SandboxPool.prefetch)
    aclose = closing(pool.SandboxPool.aclose)
    close = aclose
    events = wraps(pool.SandboxPool.events, Events)

    @classmethod
    def shared(cls, config: pool.ConfigSource | PoolConfig | None = None, **more: Any) -> SandboxPool:
        """Return the blocking pool that all threads of a process share, unopened, as `hermes_exec.SandboxPool.shared`.

        There is one for each process and configuration.

        Raises:
            RuntimeError: If an event loop runs here.
        """
        from hermes_exec.pool.shared import shared_pools

        if in_event_loop():
            raise RuntimeError("an event loop is running here: use `hermes_exec.SandboxPool.shared(...)`")
        pools, new = shared_pools(), pool.SandboxPool._from_any(config, more)
        portal = pools.portal(PORTALS)
        return cls(pools.get(portal, new, new._life), portal)

    def open(self) -> Self:
        """Open the pool, as `hermes_exec.SandboxPool.open`."""
        call(self.portal, self.wrapped.open)
        return self

    def mask(self, data: T) -> T:
        """Return data with secrets masked, as `hermes_exec.SandboxPool.mask`."""
        return self.wrapped.mask(data)

    def stats(self) -> PoolStats:
        """Return the pool's figures, as `hermes_exec.SandboxPool.stats`, also after the pool was closed."""
        try:
            return call(self.portal, self.wrapped.stats)
        except SlotClosed:
            return self.wrapped.stats()

    def check_checkpoints(self, profile: str | ProfileConfig | None = None, image: str | None = None) -> None:
        """Raise ConfigError if slots can have no checkpoints, as `hermes_exec.SandboxPool.check_checkpoints`."""
        call(self.portal, partial(self.wrapped.check_checkpoints, profile, image))

    def release(self, slot: Slot) -> None:
        """Release a slot, as `hermes_exec.SandboxPool.release`."""
        with suppress(SlotClosed):  # closing the pool released it
            call(self.portal, partial(self.wrapped.release, slot.wrapped))


class PoolContext(AbstractContextManager[SandboxPool, None]):
    """Enters and leaves a pool in the event loop of the portal."""

    def __init__(self, wrapped: pool.SandboxPool) -> None:
        self._wrapped = wrapped
        self._pid = os.getpid()
        self._portal: AbstractContextManager[BlockingPortal] | None = None
        self._pool: SyncContext[pool.SandboxPool, SandboxPool] | None = None

    def __enter__(self) -> SandboxPool:
        if in_event_loop():
            raise RuntimeError("an event loop is running here: use `async with SandboxPool(...)`, not `with`")
        self._portal = PORTALS.open()
        portal = self._portal.__enter__()
        try:
            self._pool = SyncContext(self._wrapped, SandboxPool, portal)
            return self._pool.__enter__()
        except BaseException:
            self._portal.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, portal = self._pool, self._portal
        self._pool = self._portal = None
        if entered is None or portal is None or not may_leave(self._pid):
            return
        try:
            entered.__exit__(kind, error, trace)
        finally:
            portal.__exit__(None, None, None)
