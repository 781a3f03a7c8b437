"""The set-up that equal rollouts share: one slot is set up, and each rollout runs in a fork of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import anyio

from hermes_exec import Checkpoint, ProfileConfig, SandboxPool, Slot
from hermes_exec.errors import CheckpointLost, ConfigError, ErrorCause, ExecError, SlotBusy

logger = logging.getLogger(__name__)

SetUp = Callable[[Slot], Awaitable[None]]


class SlotChoice(NamedTuple):
    """The arguments of `SandboxPool.slot` that choose a slot."""

    profile: str | ProfileConfig | None
    image: str | None
    workdir: str | None


class SetUpSlot(NamedTuple):
    """A slot that is set up. `is_fork`: a reset returns it to this state."""

    slot: Slot
    is_fork: bool


class SharedSetUp:
    """The set-up of several rollouts with the same slot, `files` and `prepare`: the argument `shared` of each.

    The first rollout sets up a slot, which gets a checkpoint. Each rollout runs in a fork of it: a slot with the files
    of the set-up and its `slot.extra_env`, but without processes. If the sandbox of the checkpoint ends, the next
    rollout sets up a slot again. It is for one pool. Await `drop` when the last rollout has ended.

    If the set-up itself fails, its rollout ends so, and the others set up slots of their own.

    Args:
        required: Whether it is a ConfigError if the slots can have no checkpoints, or if a process of the set-up still
            runs, which forks would not have. Otherwise each rollout then sets up its own slot.
    """

    def __init__(self, *, required: bool = False) -> None:
        self._required = required
        self._lock = anyio.Lock()
        self._checkpoint: Checkpoint | None = None
        self._can_fork: bool | None = None
        self._extra_env: Mapping[str, str | bytes] = {}

    @asynccontextmanager
    async def slot(self, pool: SandboxPool, choice: SlotChoice, set_up: SetUp) -> AsyncIterator[SetUpSlot]:
        """Acquire a slot that is set up for a block. Raises as `SandboxPool.slot`, `set_up` and `Slot.checkpoint`."""
        async with AsyncExitStack() as stack:
            yield await self._enter(stack, pool, choice, set_up)

    async def drop(self) -> None:
        """Forget the slot that was set up. A later rollout sets up a slot again."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            await checkpoint.drop()

    async def _enter(self, stack: AsyncExitStack, pool: SandboxPool, choice: SlotChoice, set_up: SetUp) -> SetUpSlot:
        if self._can_fork is None:
            self._can_fork = self._find_out(pool, choice)
        while self._can_fork:
            async with self._lock:
                if self._checkpoint is None and self._can_fork:
                    slot = await stack.enter_async_context(pool.slot(*choice))
                    await self._set_up(slot, set_up)
                    if not await self._hold(slot):
                        return SetUpSlot(slot, is_fork=False)
                    await stack.aclose()
                checkpoint = self._checkpoint
            if checkpoint is None:
                continue
            try:
                fork = await stack.enter_async_context(pool.slot(from_=checkpoint))
            except CheckpointLost as error:
                logger.info("setting up a slot again: %s", error)
                if self._checkpoint is checkpoint:
                    self._checkpoint = None
                continue
            fork.extra_env = self._extra_env
            return SetUpSlot(fork, is_fork=True)
        slot = await stack.enter_async_context(pool.slot(*choice))
        await set_up(slot)
        return SetUpSlot(slot, is_fork=False)

    async def _set_up(self, slot: Slot, set_up: SetUp) -> None:
        """Set up a slot. If that fails in it, the others try on their own: all at the same time, not one by one."""
        try:
            await set_up(slot)
        except Exception as error:
            in_slot = not isinstance(error, ExecError) or error.cause is not ErrorCause.INFRA
            self._can_fork = self._required or not in_slot
            raise

    def _find_out(self, pool: SandboxPool, choice: SlotChoice) -> bool:
        """Return whether the slots may have checkpoints."""
        try:
            pool.check_checkpoints(choice.profile, choice.image)
        except ConfigError:
            if self._required:
                raise
            return False
        return True

    async def _hold(self, slot: Slot) -> bool:
        """Make the checkpoint of the slot that was set up. Return False if there can be none."""
        try:
            self._checkpoint = await slot.checkpoint(processes="refuse")
        except (ConfigError, SlotBusy) as error:
            if isinstance(error, SlotBusy):
                error = ConfigError(
                    f"the set-up leaves a process running, which forks would not have: {error}. End it at the end of "
                    "the set-up, or give each rollout a set-up of its own"
                )
            if self._required:
                raise error from None
            logger.info("each rollout sets up its own slot: %s", error)
            self._can_fork = False
            return False
        self._extra_env = dict(slot.extra_env)
        return True
