"""The checkpoints of a pool: making, finding, moving and dropping them. Each has a copy in one or more sandboxes."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from secrets import token_hex
from typing import Any, NamedTuple

import anyio

from hermes_exec.channel import RemoteError
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import (
    ChannelLost,
    CheckpointLost,
    ConfigError,
    ExecError,
    OutcomeUnknown,
    ProtocolError,
    SandboxDied,
    SlotClosed,
)
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.release import Releases
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.sandbox import PooledSandbox, PooledSlot
from hermes_exec.pool.state import Phase
from hermes_exec.pool.template import Template
from hermes_exec.pool.transfer import copy_checkpoint, parse_layers
from hermes_exec.slot.answers import remote_failure
from hermes_exec.slot.checkpoint import (
    Checkpoint,
    CheckpointAnswer,
    CheckpointRequest,
    Holds,
)
from hermes_exec.slot.scope import raise_translated
from hermes_exec.slot.slot import Slot

logger = logging.getLogger(__name__)
DROP_S = 60.0
INFO_S = 60.0
_WHOLE_ROOT = "a checkpoint of a slot with a root of its own holds the whole root: leave out holds='directories'"
_OWN_DISK = "a checkpoint cannot hold a slot with a limit of its disk: leave out slot_limits.disk_mb"
LOSSES = (ChannelLost, OutcomeUnknown, ProtocolError, SandboxDied)
TRANSPORT = (*LOSSES, TimeoutError)


class CheckpointCopy(NamedTuple):
    """A checkpoint in one sandbox, with the ids of its layers there, the oldest first."""

    sandbox: PooledSandbox
    layers: tuple[str, ...]


@dataclass(slots=True)
class StoredCheckpoint:
    """A living checkpoint: its copies, its slot, and the request of the slot's holder."""

    template: Template
    image_id: str
    request: SlotRequest
    slot: Slot | None = None
    last: PooledSandbox | None = None
    """The sandbox of the copy that ended last."""
    copies: dict[int, CheckpointCopy] = field(default_factory=dict)
    """By the number of the sandbox. The sandbox of the first one is kept."""
    layers: tuple[object, ...] = ()
    """The identities of its layers, which checkpoints share, in all sandboxes."""
    made: bool = False
    uses: int = 0
    """The number of restores to it and transfers of it that are under way."""
    unused: anyio.Event | None = None
    """Set at the end of the last use, if a drop waits for it."""

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep it until the block ends: a drop waits so long."""
        self.uses += 1
        try:
            yield
        finally:
            self.uses -= 1
            if self.uses == 0 and self.unused is not None:
                self.unused.set()


class Checkpoints:
    """The living checkpoints of one pool."""

    write: Callable[[Checkpoint, str | PathLike[str]], Awaitable[None]]
    """Writes a checkpoint into a file; the creator of the pool sets it."""

    def __init__(self, fleet: Fleet, releases: Releases) -> None:
        self._fleet = fleet
        self._releases = releases
        self._stored: dict[str, StoredCheckpoint] = {}
        fleet.on_end = self._forget_copies

    def __len__(self) -> int:
        return sum(bool(stored.copies) for stored in self._stored.values())

    async def create(self, slot_id: str, request: CheckpointRequest) -> Checkpoint:
        """Make a checkpoint of a held slot. Raises as `Slot.checkpoint`."""
        pooled = self._find_slot(slot_id)
        sandbox, scope, slot, slot_request = pooled.sandbox, pooled.calls, pooled.holder, pooled.request
        assert slot is not None
        assert slot_request is not None
        holds = choose_holds(pooled, request.holds)
        checkpoint_id = self.add(StoredCheckpoint(sandbox.template, sandbox.image_id, slot_request, slot), sandbox)
        limit = {} if request.temporary else sandbox.template.checkpoint_limit
        params = {"checkpoint": checkpoint_id, "processes": request.processes, "holds": holds, **limit}
        try:
            reply = await scope.call("slot.checkpoint", params, timeout_s=request.timeout_s)
            answer, layers = CheckpointAnswer.parse(reply), parse_layers(reply)
        except BaseException:
            # The runner may have made it, or still make it.
            self.give_up(checkpoint_id)
            raise
        self.complete(checkpoint_id, sandbox, layers)
        restored = {} if scope.start is None else scope.start.sessions
        volumes = getattr(sandbox.template.backend_config, "shared_volumes", ())
        return Checkpoint(
            id=checkpoint_id,
            image=sandbox.template.image,
            answer=answer,
            session_ids={session.wire_id: session_id for session_id, session in restored.items()},
            left_out=(
                *answer.left_out,
                *(f"the shared volume {volume_parts(volume)[1]}" for volume in volumes),
            ),
            states=request.states,
            on_fork=request.on_fork,
            owner=self,
        )

    def add(self, stored: StoredCheckpoint, sandbox: PooledSandbox) -> str:
        """Add a checkpoint that is being made in a sandbox, which is kept from now on, and return its new id."""
        checkpoint_id = f"c{token_hex(8)}"
        self._stored[checkpoint_id] = stored
        self._add_copy(checkpoint_id, sandbox, ())
        return checkpoint_id

    def complete(self, checkpoint_id: str, sandbox: PooledSandbox, layers: tuple[str, ...]) -> None:
        """Record that a checkpoint is made, and its layers in the sandbox, the oldest first."""
        stored, present_layers = self._stored[checkpoint_id], self._known_layers(sandbox)
        stored.layers = tuple(present_layers[layer][0] if layer in present_layers else object() for layer in layers)
        if sandbox.record.id in stored.copies:
            stored.copies[sandbox.record.id] = CheckpointCopy(sandbox, layers)
        stored.made = True

    def give_up(self, checkpoint_id: str) -> None:
        """Forget a checkpoint that was not made, and drop what the sandbox has of it."""
        self._drop_later(checkpoint_id)

    async def save(self, checkpoint: Checkpoint, path: str | PathLike[str]) -> None:
        """Implement `Checkpoint.save`."""
        await self.write(checkpoint, path)

    def find(self, checkpoint: Checkpoint) -> StoredCheckpoint:
        """Return a living checkpoint.

        Raises:
            SlotClosed: If it was dropped, or the pool was closed.
            CheckpointLost: If the sandboxes with its copies have ended.
            ConfigError: If it belongs to another pool.
        """
        stored = self._stored.get(checkpoint.id)
        if stored is not None and stored.copies and not checkpoint.dropped:
            return stored
        raise self.loss_error(checkpoint)

    def loss_error(self, checkpoint: Checkpoint) -> ExecError:
        """Return the error for a checkpoint that does not live in this pool."""
        if checkpoint.dropped:
            return SlotClosed("the checkpoint was dropped")
        if self._fleet.closing:
            return SlotClosed("the pool was closed")
        if (stored := self._stored.get(checkpoint.id)) is None:
            return ConfigError(
                f"the checkpoint {checkpoint.id} belongs to another pool: use it in the pool of its slot, or save it "
                "there and load it here"
            )
        sandbox = stored.last
        assert sandbox is not None
        reason = f": {sandbox.death.reason}" if sandbox.death is not None else ""
        message = f"the checkpoint {checkpoint.id} is lost, because its sandbox {sandbox.id} has ended{reason}"
        return CheckpointLost(message, sandbox=sandbox.id)

    def is_lost(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint cannot be used any more."""
        stored = self._stored.get(checkpoint.id)
        return checkpoint.dropped or stored is None or not stored.copies

    @asynccontextmanager
    async def use(self, slot_id: str, checkpoint: Checkpoint) -> AsyncIterator[None]:
        """Copy a checkpoint to the sandbox of a slot, and keep it until the block ends: a drop waits so long.

        Raises:
            ConfigError: If the slot cannot have it. Otherwise as `find`.
        """
        pooled = self._find_slot(slot_id)
        choose_holds(pooled, checkpoint.holds)
        try:
            await self.bring(checkpoint, pooled.sandbox)
        except LOSSES as error:
            raise_translated(await pooled.sandbox.explain_loss(error), error)
        with self.find(checkpoint).use():
            yield

    async def restore(self, slot_id: str, checkpoint: Checkpoint) -> None:
        """Implement `Slot.restore`."""
        await self._releases.restore(slot_id, checkpoint)

    def resolve(self, checkpoint: Checkpoint, request: SlotRequest) -> SlotRequest:
        """Return a request for forks with the profile and image of the checkpoint's slot.

        Raises as `find`.
        """
        stored = self.find(checkpoint)
        if request.profile is None and request.image is None:
            request = request._replace(profile=stored.request.profile, image=stored.request.image)
        return request

    def check_forks(self, checkpoint: Checkpoint, template: Template, count: int) -> None:
        """Raise ConfigError if slots of a template cannot be forks of a checkpoint, or too few of them."""
        stored = self.find(checkpoint)
        if template.key != stored.template.key:
            check_template(template, checkpoint.holds)
            if (template.image, template.setup) != (stored.template.image, stored.template.setup):
                raise ConfigError(
                    f"forks have the image and `setup` of their checkpoint, which is of {stored.template.key}, and "
                    f"{template.key} has others: leave out profile= and image="
                )
        check_room(template, stored, count)

    def check_fork(self, slot: Slot, count: int) -> None:
        """Raise ConfigError if a slot cannot have so many forks."""
        pooled = self._find_slot(slot.id)
        choose_holds(pooled, None)
        template = pooled.sandbox.template
        check_room(template, StoredCheckpoint(template, "", SlotRequest(), slot), count)

    # Copies.

    def _add_copy(self, checkpoint_id: str, sandbox: PooledSandbox, layers: tuple[str, ...]) -> None:
        stored = self._stored[checkpoint_id]
        if not stored.copies:
            sandbox.record.checkpoints += 1
        stored.copies[sandbox.record.id] = CheckpointCopy(sandbox, layers)
        self._fleet.state.copies[checkpoint_id] = list(stored.copies)

    def _forget_copies(self, sandbox: PooledSandbox) -> None:
        """Forget the copies in a sandbox that ends. A sandbox with another copy is kept from now on."""
        for checkpoint_id, stored in self._stored.items():
            if sandbox.record.id not in stored.copies:
                continue
            self.keep_in(checkpoint_id, stored, next((each for each in stored.copies if each != sandbox.record.id), 0))
            del stored.copies[sandbox.record.id]
            stored.last = sandbox
            self._fleet.state.copies[checkpoint_id] = list(stored.copies)

    def keep_in(self, checkpoint_id: str, stored: StoredCheckpoint, number: int) -> None:
        """Keep the sandbox with this number, if it has a copy, in place of the one that is kept now."""
        first = next(iter(stored.copies))
        if number == first or number not in stored.copies:
            return
        stored.copies[first].sandbox.record.checkpoints -= 1
        stored.copies[number].sandbox.record.checkpoints += 1
        stored.copies = {number: stored.copies[number], **stored.copies}
        self._fleet.state.copies[checkpoint_id] = list(stored.copies)

    def _known_layers(self, sandbox: PooledSandbox) -> dict[str, tuple[object, StoredCheckpoint]]:
        """Return the layers that living checkpoints have in a sandbox: their identities by their ids there."""
        return {
            layer: (identity, stored)
            for stored in self._stored.values()
            if (copy := stored.copies.get(sandbox.record.id)) is not None
            for layer, identity in zip(copy.layers, stored.layers, strict=False)
        }

    async def bring(self, checkpoint: Checkpoint, target: PooledSandbox) -> None:
        """Copy a checkpoint to a sandbox that does not have it. Tasks that want the same wait for one transfer.

        Raises:
            ConfigError: If the image, `setup` or the root of the sandbox is another one.
            ExecError: If one of the sandboxes was gone or did not answer. Otherwise as `find`.
            OSError: If the target's disk has no room, or directories are nested too deeply.
        """
        stored = self.find(checkpoint)
        if target.record.id in stored.copies:
            return
        if target.image_id != stored.image_id:
            raise ConfigError(
                f"the image {target.template.image!r} has changed since the checkpoint was made: its slot had "
                f"{stored.image_id}, and the sandbox {target.id} has {target.image_id}. Prepare a slot again"
            )
        if target.template.setup != stored.template.setup:
            raise ConfigError(
                f"the checkpoint was made over the `setup` of {stored.template.key}, and the slots of "
                f"{target.template.key} have another one: use a slot with the same `setup`"
            )
        await self.copy_to(checkpoint.id, target)
        self.find(checkpoint)

    async def copy_to(self, checkpoint_id: str, target: PooledSandbox) -> None:
        """Copy a checkpoint to a sandbox if it lives and the sandbox does not have it. Raises as `bring`."""
        async with target.arriving:
            stored = self._stored.get(checkpoint_id)
            if stored is not None and target.record.id not in stored.copies:
                await self._copy(checkpoint_id, stored, target)

    def kept_in(self, sandbox: PooledSandbox) -> dict[str, StoredCheckpoint]:
        """Return the checkpoints for which a sandbox is kept, by their ids."""
        return {
            checkpoint_id: stored
            for checkpoint_id, stored in self._stored.items()
            if stored.made and next(iter(stored.copies), None) == sandbox.record.id
        }

    async def _copy(self, checkpoint_id: str, stored: StoredCheckpoint, target: PooledSandbox) -> None:
        began = time.monotonic()
        present_layers = {identity: (layer, base) for layer, (identity, base) in self._known_layers(target).items()}
        present = [present_layers[each][0] if each in present_layers else None for each in stored.layers]
        sources = [copy.sandbox for copy in stored.copies.values() if copy.sandbox.record.phase is Phase.READY]

        def check() -> None:
            if checkpoint_id not in self._stored:
                raise SlotClosed("the checkpoint was dropped")

        needed = (stored, *(present_layers[each][1] for each in stored.layers if each in present_layers))
        with ExitStack() as in_use:
            for each in {id(each): each for each in needed}.values():
                in_use.enter_context(each.use())
            for source in sources:
                try:
                    layers = await copy_checkpoint(source, target, checkpoint_id, present, check)
                    check()
                    if target.record.phase is not Phase.READY:
                        raise ChannelLost("the sandbox has ended", sandbox=target.id)
                    break
                except BaseException as error:
                    self._fleet.background(partial(self._drop_at, target, checkpoint_id), f"drop {checkpoint_id}")
                    if not isinstance(error, TRANSPORT) or not await target.ping():
                        raise
                    await self._note_failed_source(source, error)
            else:
                if not stored.copies:  # lost, which the caller finds out
                    return
                why = "no sandbox with it answers as it should"
                raise ExecError(f"the checkpoint {checkpoint_id} cannot be copied: {why}", retryable=True)
            self._add_copy(checkpoint_id, target, layers)
        took = time.monotonic() - began
        logger.debug("%s was copied from %s to %s in %.3g s", checkpoint_id, source.id, target.id, took)

    async def _note_failed_source(self, source: PooledSandbox, error: BaseException) -> None:
        """Give up a sandbox that could not send a checkpoint, if it is dead."""
        logger.warning("a checkpoint could not be copied from %s: %s", source.id, error)
        if (await source.status()).state == "dead":
            self._fleet.mark_dead(source)

    # Dropping.

    async def drop(self, checkpoint: Checkpoint) -> None:
        """Implement `Checkpoint.drop`: no effect if it is dropped or lost."""
        checkpoint.dropped = True
        await self._drop_later(checkpoint.id).wait()

    def forget(self, checkpoint: Checkpoint) -> None:
        """Drop a checkpoint as `drop`, without waiting."""
        checkpoint.dropped = True
        self._drop_later(checkpoint.id)

    def _drop_later(self, checkpoint_id: str) -> anyio.Event:
        done = anyio.Event()
        if self._fleet.closing:
            done.set()
        else:
            self._fleet.background(partial(self._drop, checkpoint_id, done), f"drop {checkpoint_id}")
        return done

    async def _drop(self, checkpoint_id: str, done: anyio.Event) -> None:
        stored = self._stored.pop(checkpoint_id, None)
        try:
            if stored is None:
                return
            if stored.uses > 0:
                stored.unused = anyio.Event()
                self._fleet.on_change()
                await stored.unused.wait()
            self._fleet.state.copies.pop(checkpoint_id, None)
            for number, copy in enumerate(stored.copies.values()):
                if number == 0:
                    copy.sandbox.record.checkpoints -= 1
                if copy.sandbox.record.id in self._fleet.sandboxes:
                    await self._drop_at(copy.sandbox, checkpoint_id)
        finally:
            done.set()
            self._fleet.on_change()

    async def _drop_at(self, sandbox: PooledSandbox, checkpoint_id: str) -> None:
        params = {"checkpoint": checkpoint_id}
        try:
            await sandbox.channel.call("checkpoint.drop", params, timeout_s=DROP_S)
        except (ExecError, RemoteError, TimeoutError) as error:
            logger.debug("%s was not dropped: %s", checkpoint_id, error)

    async def measure(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """Return the runner's facts of a checkpoint. Raises as `Checkpoint.sizes`."""
        sandbox = next(iter(self.find(checkpoint).copies.values())).sandbox
        try:
            return await sandbox.channel.call("checkpoint.info", {"checkpoint": checkpoint.id}, timeout_s=INFO_S)
        except RemoteError as error:
            raise remote_failure(error) from None
        except ExecError as error:
            raise await sandbox.explain_loss(error) from error

    def _find_slot(self, slot_id: str) -> PooledSlot:
        if (pooled := self._releases.held.get(slot_id)) is None:
            raise SlotClosed("the slot was released")
        return pooled


@dataclass(frozen=True, slots=True)
class SlotCheckpoints:
    """The checkpoints of one held slot: the `CheckpointStore` of a `Slot`."""

    store: Checkpoints
    slot_id: str

    async def create(self, request: CheckpointRequest) -> Checkpoint:
        """Implement `Slot.checkpoint`."""
        return await self.store.create(self.slot_id, request)

    def use(self, checkpoint: Checkpoint) -> AbstractAsyncContextManager[None]:
        """Keep a checkpoint for `Slot.restore`, in the sandbox of the slot."""
        return self.store.use(self.slot_id, checkpoint)

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Implement `Slot.restore`."""
        await self.store.restore(self.slot_id, checkpoint)


def check_disk(template: Template) -> None:
    """Raise ConfigError if slots of a template have limits of their disks, with which they have no checkpoints."""
    if template.config.slot_limits.disk_mb is not None:
        raise ConfigError(_OWN_DISK)


def check_template(template: Template, holds: Holds | None = None) -> None:
    """Raise ConfigError if no slot of a template can have such checkpoints; the message names the settings."""
    check_disk(template)
    if template.own_roots.enabled:
        if holds == "directories":
            raise ConfigError(_WHOLE_ROOT)
        return
    if template.exclusive or holds == "root" or (template.backend.can_be_exclusive and holds is None):
        raise ConfigError(_own_root_advice(template, alone=template.exclusive))


def choose_holds(pooled: PooledSlot, holds: Holds | None) -> Holds:
    """Return "root" or "directories" for a checkpoint of a slot with the argument `holds`.

    Raises:
        ConfigError: If the slot cannot have such a checkpoint; the message names the settings that make it possible.
    """
    template, level = pooled.sandbox.template, pooled.calls.facts.isolation.level
    if pooled.calls.facts.has_own_disk:
        raise ConfigError(_OWN_DISK)
    if template.own_roots.enabled:
        if holds == "directories":
            raise ConfigError(_WHOLE_ROOT)
        return "root"
    by_itself = level == "namespaces" and not template.backend.can_be_exclusive
    if not template.exclusive and (holds == "directories" or (holds is None and by_itself)):
        return "directories"
    raise ConfigError(_own_root_advice(template, alone=template.exclusive))


def _own_root_advice(template: Template, *, alone: bool) -> str:
    """Return why slots of a template, which have no root of their own, have no checkpoint of it, and what to do."""
    needs = "a checkpoint of the whole root needs a slot with a root of its own"
    directories = "use holds='directories' for workspace, home and temporary directories only"
    if not template.backend.can_be_exclusive:
        name = template.backend.name
        return f"{needs}, and slots of backend {name!r} have none: {directories}, or backend 'docker' or 'singularity'"
    if template.own_roots.refused:
        return f"{needs}, and they are not possible here: {template.own_roots.refused}; {directories}"
    own_root = "set slot_root='own', and slots_per_sandbox to the number of slots and forks that exist at once"
    return f"{needs}: {own_root}" if alone else f"{needs}: {own_root}, or {directories}"


def check_room(template: Template, parent: StoredCheckpoint, count: int) -> None:
    """Raise ConfigError if there can never be `count` forks, beside the slot of the checkpoint while it is held."""
    held = parent.slot is not None and not parent.slot.closed and parent.template.key == template.key
    needed, most = count + held, template.most_slots
    if needed > most:
        beside = ", one of which the slot of the checkpoint has (release it first)" if held else ""
        sandboxes, size = template.most_sandboxes, template.size.slots_per_sandbox
        raise ConfigError(
            f"{count} forks were requested, and there can be {most} slots at once{beside}: "
            f"set slots_per_sandbox={-(-needed // sandboxes)} or max_sandboxes={-(-needed // size)}"
        )
