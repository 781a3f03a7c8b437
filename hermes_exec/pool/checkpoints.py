"""The checkpoints of a pool: making, finding and dropping them. Each lives in the sandbox of its slot."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any

import anyio

from hermes_exec.channel import RemoteError
from hermes_exec.config.model import volume_parts
from hermes_exec.errors import CheckpointLost, ConfigError, ExecError, SlotClosed
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.release import Releases
from hermes_exec.pool.request import SlotRequest
from hermes_exec.pool.sandbox import PooledSandbox, PooledSlot
from hermes_exec.pool.template import Template
from hermes_exec.slot.answers import remote_failure
from hermes_exec.slot.checkpoint import Checkpoint, CheckpointAnswer, ProcessPolicy, States
from hermes_exec.slot.slot import Slot

logger = logging.getLogger(__name__)
DROP_S = 60.0
INFO_S = 60.0
_OWN_DISK = "a checkpoint cannot hold a slot with a limit of its disk: leave out slot_limits.disk_mb"


@dataclass(slots=True)
class StoredCheckpoint:
    """The place of a living checkpoint: its sandbox, its slot, and the request of the slot's holder."""

    sandbox: PooledSandbox
    slot: Slot
    request: SlotRequest
    uses: int = 0
    """The number of restores to it that are under way."""
    unused: anyio.Event | None = None
    """Set at the end of the last use, if a drop waits for it."""


class Checkpoints:
    """The living checkpoints of one pool."""

    def __init__(self, fleet: Fleet, releases: Releases) -> None:
        self._fleet = fleet
        self._releases = releases
        self._stored: dict[str, StoredCheckpoint] = {}

    def __len__(self) -> int:
        return sum(stored.sandbox.record.id in self._fleet.sandboxes for stored in self._stored.values())

    async def create(
        self,
        slot_id: str,
        processes: ProcessPolicy,
        timeout_s: float | None,
        states: States,
        on_fork: tuple[str, ...],
    ) -> Checkpoint:
        """Make a checkpoint of a held slot. Raises as `Slot.checkpoint`."""
        pooled = self._find_slot(slot_id)
        sandbox, scope, slot, request = pooled.sandbox, pooled.calls, pooled.holder, pooled.request
        assert slot is not None
        assert request is not None
        check_slot(pooled)
        checkpoint_id = f"c{token_hex(8)}"
        self._stored[checkpoint_id] = StoredCheckpoint(sandbox, slot, request)
        sandbox.record.checkpoints += 1
        params = {"checkpoint": checkpoint_id, "processes": processes, **sandbox.template.checkpoint_limit}
        try:
            answer = CheckpointAnswer.parse(await scope.call("slot.checkpoint", params, timeout_s=timeout_s))
        except BaseException:
            # The runner may have made it, or still make it.
            self._drop_later(checkpoint_id)
            raise
        restored = {} if scope.start is None else scope.start.sessions
        volumes = getattr(sandbox.template.backend_config, "shared_volumes", ())
        return Checkpoint(
            id=checkpoint_id,
            image=sandbox.template.image,
            answer=answer,
            session_ids={session.wire_id: session_id for session_id, session in restored.items()},
            shared_volumes=tuple(volume_parts(volume)[1] for volume in volumes),
            states=states,
            on_fork=on_fork,
            drop=self.drop,
            measure=self.measure,
        )

    def find(self, checkpoint: Checkpoint) -> StoredCheckpoint:
        """Return the place of a checkpoint.

        Raises:
            SlotClosed: If it was dropped, or the pool was closed.
            CheckpointLost: If its sandbox has ended.
            ConfigError: If it belongs to another pool.
        """
        stored = self._stored.get(checkpoint.id)
        lives = stored is not None and stored.sandbox.record.id in self._fleet.sandboxes
        if stored is not None and lives and not checkpoint.dropped:
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
                f"the checkpoint {checkpoint.id} belongs to another pool: use it in the pool of its slot"
            )
        sandbox = stored.sandbox
        reason = f": {sandbox.death.reason}" if sandbox.death is not None else ""
        message = f"the checkpoint {checkpoint.id} is lost, because its sandbox {sandbox.id} has ended{reason}"
        return CheckpointLost(message, sandbox=sandbox.id)

    @contextmanager
    def use(self, slot_id: str, checkpoint: Checkpoint) -> Iterator[None]:
        """Keep a checkpoint until the block ends: a drop waits so long.

        Raises:
            ConfigError: If it is in another sandbox than the slot. Otherwise as `find`.
        """
        stored = self.find(checkpoint)
        there, here = stored.sandbox, self._find_slot(slot_id).sandbox
        if here is not there:
            raise ConfigError(
                f"the checkpoint {checkpoint.id} is in the sandbox {there.id}, and the slot in {here.id}: "
                "acquire a slot there with pool.slot(from_=checkpoint)"
            )
        stored.uses += 1
        try:
            yield
        finally:
            stored.uses -= 1
            if stored.uses == 0 and stored.unused is not None:
                stored.unused.set()

    async def restore(self, slot_id: str, checkpoint: Checkpoint) -> None:
        """Implement `Slot.restore`."""
        await self._releases.restore(slot_id, checkpoint)

    def resolve(self, checkpoint: Checkpoint, request: SlotRequest, count: int) -> tuple[PooledSandbox, SlotRequest]:
        """Return the sandbox for a request of `count` forks, and the request with the profile and image of the slot.

        Raises:
            ConfigError: If the sandbox has too few slots. Otherwise as `find`.
        """
        stored = self.find(checkpoint)
        check_room(stored.sandbox, stored.slot, count)
        if request.profile is None and request.image is None:
            request = request._replace(profile=stored.request.profile, image=stored.request.image)
        return stored.sandbox, request

    def check_fork(self, slot: Slot, count: int) -> None:
        """Raise ConfigError if a slot cannot have so many forks."""
        pooled = self._find_slot(slot.id)
        check_slot(pooled)
        check_room(pooled.sandbox, slot, count)

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
            if stored is not None and stored.uses > 0:
                stored.unused = anyio.Event()
                self._fleet.on_change()
                await stored.unused.wait()
            if stored is None or stored.sandbox.record.id not in self._fleet.sandboxes:
                return
            stored.sandbox.record.checkpoints -= 1
            params = {"checkpoint": checkpoint_id}
            await stored.sandbox.channel.call("checkpoint.drop", params, timeout_s=DROP_S)
        except (ExecError, RemoteError, TimeoutError) as error:
            logger.debug("%s was not dropped: %s", checkpoint_id, error)
        finally:
            done.set()
            self._fleet.on_change()

    async def measure(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """Return the runner's facts of a checkpoint. Raises as `Checkpoint.sizes`."""
        sandbox = self.find(checkpoint).sandbox
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

    async def create(
        self, processes: ProcessPolicy, timeout_s: float | None, states: States, on_fork: tuple[str, ...]
    ) -> Checkpoint:
        """Implement `Slot.checkpoint`."""
        return await self.store.create(self.slot_id, processes, timeout_s, states, on_fork)

    def use(self, checkpoint: Checkpoint) -> AbstractContextManager[None]:
        """Keep a checkpoint for `Slot.restore`."""
        return self.store.use(self.slot_id, checkpoint)

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Implement `Slot.restore`."""
        await self.store.restore(self.slot_id, checkpoint)


def check_slot(pooled: PooledSlot) -> None:
    """Raise ConfigError if no checkpoint of a slot is possible, with the settings that make it possible."""
    check_own_root(pooled.sandbox.template)
    if pooled.calls.facts.has_own_disk:
        raise ConfigError(_OWN_DISK)


def check_template(template: Template) -> None:
    """Raise ConfigError if no slot of a template can have checkpoints, with the settings that make them possible."""
    check_own_root(template)
    if template.config.slot_limits.disk_mb is not None:
        raise ConfigError(_OWN_DISK)


def check_own_root(template: Template) -> None:
    """Raise ConfigError if the slots of a template have no root of their own, with the settings that give them one."""
    own_roots, name = template.own_roots, template.backend.name
    if own_roots.enabled:
        return
    needs = "a checkpoint needs a slot with a root of its own"
    if not template.backend.can_be_exclusive:
        raise ConfigError(f"{needs}, and slots of backend {name!r} have none: use backend 'docker' or 'singularity'")
    if own_roots.refused:
        raise ConfigError(f"{needs}, and they are not possible here: {own_roots.refused}")
    raise ConfigError(
        f"{needs}: set slot_root='own', and slots_per_sandbox to the number of slots and forks that exist at once"
    )


def check_room(sandbox: PooledSandbox, parent: Slot, count: int) -> None:
    """Raise ConfigError if a sandbox can never have `count` forks of a slot, beside the slot as long as it is held."""
    needed, size = count + (not parent.closed), sandbox.record.size
    if needed > size:
        beside = "" if parent.closed else ", one of which the slot of the checkpoint has (release it first)"
        raise ConfigError(
            f"{count} forks were requested, and their sandbox has {size} slots{beside}: set slots_per_sandbox={needed}"
        )
