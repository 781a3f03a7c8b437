"""Checkpoints: the files and shell sessions of a slot at one moment. Slots return to them, and start from them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args
from weakref import WeakKeyDictionary

import anyio
from anyio import to_thread

from hermes_exec.aio.facade import SyncFacade
from hermes_exec.channel.encoding import from_wire, printable
from hermes_exec.errors import ConfigError, ProtocolError
from hermes_exec.results import KillReceipt, LayerSize
from hermes_exec.slot.answers import integer, items, optional_receipt, texts

ProcessPolicy = Literal["keep", "refuse", "end"]
Holds = Literal["root", "directories"]


States = WeakKeyDictionary["StateKey", object]
"""The saved states of objects beside a slot."""


class RestoredSession(NamedTuple):
    """A shell session that a slot got from a checkpoint: its id on the wire, and its directory."""

    wire_id: str
    cwd: str


@dataclass(frozen=True, slots=True)
class SlotStart:
    """The state that a slot got from a checkpoint: sessions by `Session.id`, and the saved states of toolboxes."""

    workdir: str
    sessions: Mapping[str, RestoredSession]
    states: States


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """The runner's answer to `slot.checkpoint`."""

    workdir: str
    sessions: Mapping[str, str]
    """The directories of the sessions, by their ids on the wire."""
    killed: KillReceipt | None
    copied: bool = False
    holds: Holds = "root"
    left_out: tuple[str, ...] = ()
    """What the slot had and the checkpoint does not hold."""

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> CheckpointAnswer:
        """Parse the answer. Raises ProtocolError if a field is missing or has a wrong type."""
        sessions = {wire_id: from_wire(facts.get("cwd"), "cwd") for wire_id, facts in _sessions(answer).items()}
        workdir = from_wire(answer.get("workdir"), "workdir")
        killed, directories = optional_receipt(answer.get("killed")), texts(answer, "directories")
        outside = (f"files outside of {', '.join(directories)}",) if directories else ()
        left_out = (*outside, *map(printable, texts(answer, "left_out")))
        holds: Holds = "directories" if directories else "root"
        return cls(workdir, sessions, killed, answer.get("copied") is True, holds, left_out)


class Checkpoint:
    """The files, the working directory and the shell sessions of a slot at one moment, made by `Slot.checkpoint`.

    `id` is its name. `holds` is "root" if it holds the slot's whole root, or "directories" if it holds workspace, home
    and temporary directories only. `left_out` lists what the slot had at that moment and the checkpoint does not
    hold: processes, connections, files in memory, System V objects, shared volumes. `image` is the image of the slot,
    `workdir` the slot's working directory, and `sessions` maps the `Session.id` of each open shell session to its
    directory. `killed` is the receipt of the processes that `processes="end"` ended. `copied` tells whether the slot's
    changes were copied; otherwise they were frozen, which has effects in the slot (docs/fork.md, "How it works").
    `on_fork` are the commands that run in each fork and after each restore.

    It lives in the sandbox of the slot, and in those to which forks have taken it. The pool keeps one of them as long
    as the checkpoint is not dropped. When they die, the checkpoint is lost (CheckpointLost). `async with checkpoint:`
    drops it at the end of the block.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the public name of the attribute
        image: str | None,
        answer: CheckpointAnswer,
        session_ids: Mapping[str, str],
        left_out: tuple[str, ...],
        states: States,
        on_fork: tuple[str, ...] = (),
        owner: CheckpointOwner,
    ) -> None:
        self.id = id
        self.image = image
        self.workdir = answer.workdir
        self.sessions: Mapping[str, str] = {session_ids.get(wire, wire): cwd for wire, cwd in answer.sessions.items()}
        self.holds: Holds = answer.holds
        self.left_out = left_out
        self.killed = answer.killed
        self.copied = answer.copied
        self.on_fork = on_fork
        self.dropped = False
        self._session_ids = {wire: session_ids.get(wire, wire) for wire in answer.sessions}
        self._states = states
        self._owner = owner

    def __repr__(self) -> str:
        return f"<Checkpoint {self.id}{' dropped' if self.dropped else ''}>"

    async def sizes(self) -> tuple[LayerSize, ...]:
        """Return the size of each layer of its files over the image, the oldest first.

        A layer takes its room once, whatever the number of checkpoints and slots that share it.

        Raises:
            SlotClosed: If it was dropped. CheckpointLost: If its sandbox has ended.
        """
        layers = items(await self._owner.measure(self), "layers")
        return tuple(LayerSize(integer(layer, "entries"), integer(layer, "bytes")) for layer in layers)

    async def drop(self) -> None:
        """Forget the checkpoint. Its files take room until no slot uses them. May be called more than once.

        Slots that were acquired from it or restored to it do not change, and the former still return to it by `reset`.
        """
        await self._owner.drop(self)

    async def save(self, path: str | PathLike[str]) -> None:
        """Write the checkpoint into a file of this host, from which `SandboxPool.load` makes a checkpoint again.

        The file has the layers over the image, not the image; or the slot's directories, if the checkpoint holds these.
        Of the shell sessions it has directories, functions, aliases and options, but no variable and no environment:
        the slots that continue them give them their own.
        Files of the slot are in it as they are, secrets included, so only its owner may read the file. Saved states of
        a Toolbox are not in it. The file appears under its name when it is complete; after an error or a cancellation,
        nothing is left.

        Raises:
            OSError: If the file cannot be written, or directories are nested more than 500 deep (ENAMETOOLONG).
            SlotClosed: If the checkpoint was dropped. CheckpointLost: If its sandboxes have ended.
        """
        await self._owner.save(self, path)

    async def export_oci(self, target: str | PathLike[str], base: str | PathLike[str]) -> tuple[str, ...]:
        """Write an OCI image of a base image and the checkpoint's layers, and return what the image cannot hold.

        `target` is a new file whose name ends with `.tar`, which `docker load`, podman, skopeo and Apptainer read, or a
        new directory with an OCI layout. `base` is the slot's image: a tar of `docker save`, or a tar or directory with
        an OCI layout. Variables of sessions are not in the image, as in `save`.

        Left out, with their paths, are names that begin with `.wh.`, sockets, holes of files (zeros take their place; a
        file with more than 1 GiB of holes is missing) and times before 1970.

        Raises:
            FileExistsError: If `target` exists.
            ConfigError: If `base` is no image, or the checkpoint holds directories only. Otherwise as `save`.
        """
        from hermes_exec.archives.oci import export_image, validate_holds

        validate_holds(self.holds, f"the checkpoint {self.id}")
        path = Path(target)
        saved = path.with_name(f".{path.name}.{token_hex(8)}.hxcp")
        await self.save(saved)
        try:
            return tuple(await to_thread.run_sync(export_image, saved, path, base))
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(saved.unlink)

    def session_id(self, wire_id: str) -> str:
        """Return the `Session.id` of a session of the checkpoint, by its id on the wire."""
        return self._session_ids.get(wire_id, wire_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drop()

    def start(self, answer: Mapping[str, Any]) -> SlotStart:
        """Return the state of a slot that was set to this checkpoint, from the answer to `slot.restore`."""
        sessions = {}
        for wire, facts in _sessions(answer).items():
            if (session_id := self._session_ids.get(wire)) is not None:
                name = facts.get("session")
                if not isinstance(name, str):
                    raise ProtocolError("the sandbox sent a restored session without an id")
                sessions[session_id] = RestoredSession(name, from_wire(facts.get("cwd"), "cwd"))
        return SlotStart(from_wire(answer.get("workdir"), "workdir"), sessions, self._states)


class CheckpointOwner(Protocol):
    """The pool's part of its checkpoints."""

    async def drop(self, checkpoint: Checkpoint) -> None:
        """Implement `Checkpoint.drop`."""

    async def measure(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """Return the runner's facts. Raises as `Checkpoint.sizes`."""

    async def save(self, checkpoint: Checkpoint, path: str | PathLike[str]) -> None:
        """Implement `Checkpoint.save`."""


class StateKey:
    """The key of a saved state: objects that continue one another in slots and their forks share it."""


class HasSavedState(Protocol):
    """An object beside a slot whose state belongs to the slot's checkpoints, such as a Toolbox."""

    state_key: StateKey

    def save_state(self) -> object:
        """Return the present state, which nobody changes later."""


class CheckpointRequest(NamedTuple):
    """The valid arguments of `Slot.checkpoint`, and the saved states of the objects beside the slot."""

    processes: ProcessPolicy
    holds: Holds | None
    on_fork: tuple[str, ...]
    temporary: bool
    timeout_s: float | None
    states: States


class CheckpointStore(Protocol):
    """The pool's part of the checkpoints of one slot."""

    async def create(self, request: CheckpointRequest) -> Checkpoint:
        """Implement `Slot.checkpoint`."""

    def use(self, checkpoint: Checkpoint) -> AbstractAsyncContextManager[None]:
        """Copy a checkpoint to the sandbox of the slot, and keep it until the block ends: a drop waits so long.

        Raises the error of `Slot.restore` if the slot cannot return to it.
        """

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Set the slot, whose calls have ended, to the checkpoint."""


AnyCheckpoint = Checkpoint | SyncFacade[Checkpoint]
"""A checkpoint, or its blocking form."""


def plain_checkpoint(checkpoint: AnyCheckpoint) -> Checkpoint:
    """Return the checkpoint itself for it or its blocking form.

    Raises:
        ConfigError: If it is neither.
    """
    plain = checkpoint.wrapped if isinstance(checkpoint, SyncFacade) else checkpoint
    if not isinstance(plain, Checkpoint):
        raise ConfigError(
            f"a checkpoint is what `slot.checkpoint()` or `pool.load()` returns, not a {type(checkpoint).__name__}; "
            "`pool.fork(slot, n)` copies a slot"
        )
    return plain


def validate_process_policy(processes: ProcessPolicy) -> ProcessPolicy:
    """Return a valid policy. Raises ConfigError."""
    if processes not in get_args(ProcessPolicy):
        raise ConfigError(f"processes must be 'keep', 'refuse' or 'end', not {processes!r}")
    return processes


def validate_holds(holds: Holds | None) -> Holds | None:
    """Return a valid value. Raises ConfigError."""
    if holds is not None and holds not in get_args(Holds):
        raise ConfigError(f"holds must be None, 'root' or 'directories', not {holds!r}")
    return holds


def _sessions(answer: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    sessions = answer.get("sessions")
    if not isinstance(sessions, dict) or not all(isinstance(facts, dict) for facts in sessions.values()):
        raise ProtocolError("the sandbox sent sessions of a wrong type")
    return sessions
