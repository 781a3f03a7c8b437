"""Handing over: before a sandbox ends, another one gets the checkpoints for which it is kept."""

from __future__ import annotations

import logging

import anyio

from hermes_exec.errors import ChannelLost, ConfigError, ExecError
from hermes_exec.pool.acquire import Queue
from hermes_exec.pool.checkpoints import Checkpoints
from hermes_exec.pool.fleet import Fleet
from hermes_exec.pool.plan import retires_at
from hermes_exec.pool.sandbox import PooledSandbox
from hermes_exec.pool.state import SandboxRecord

logger = logging.getLogger(__name__)
PAUSES_S = (5.0, 60.0)
"""The pause after the first attempt, and the longest pause. Each is twice the one before."""


class HandOvers:
    """The hand-overs of one pool."""

    def __init__(self, fleet: Fleet, queue: Queue, checkpoints: Checkpoints) -> None:
        self._fleet, self._queue, self._checkpoints = fleet, queue, checkpoints
        fleet.hand_over = self.hand_over

    async def hand_over(self, sandbox: PooledSandbox) -> None:
        """Have other sandboxes keep the checkpoints of one that is about to end. Try until it has none or has ended."""
        record, (pause_s, most_s) = sandbox.record, PAUSES_S
        try:
            while record.checkpoints and record.id in self._fleet.sandboxes:
                try:
                    for checkpoint_id in self._checkpoints.kept_in(sandbox):
                        await self._hand_over(checkpoint_id, sandbox)
                except ExecError as error:
                    logger.warning("the checkpoints of %s could not be handed over: %s", sandbox.id, error)
                if record.checkpoints:
                    await anyio.sleep(pause_s)
                    pause_s = min(most_s, pause_s * 2)
        finally:
            record.handing_over = False
            self._fleet.on_change()

    async def _hand_over(self, checkpoint_id: str, sandbox: PooledSandbox) -> None:
        """Have another sandbox keep a checkpoint, unless it cannot be copied. Raises as `_find_target`."""
        if (stored := self._checkpoints.kept_in(sandbox).get(checkpoint_id)) is None:
            return
        others = [copy.sandbox.record for copy in stored.copies.values()]
        keeper = next((each for each in others if self._outlives(each, sandbox)), None)
        if keeper is None:
            target = await self._find_target(sandbox)
            try:
                await self._checkpoints.copy_to(checkpoint_id, target)
            except (ExecError, OSError) as error:
                logger.warning("the checkpoint %s could not be handed over to %s: %s", checkpoint_id, target.id, error)
                return
            keeper = target.record
        if checkpoint_id in self._checkpoints.kept_in(sandbox):
            self._checkpoints.keep_in(checkpoint_id, stored, keeper.id)

    def _retires_at(self, record: SandboxRecord, *, keeps_checkpoints: bool = True) -> float:
        longest_s = self._fleet.sandboxes[record.id].template.size.max_lifetime_s
        return retires_at(record, longest_s, keeps_checkpoints=keeps_checkpoints)

    def _outlives(self, record: SandboxRecord, sandbox: PooledSandbox) -> bool:
        """Return whether a sandbox can keep the checkpoints of another one."""
        return (
            record.template == sandbox.record.template
            and record.available
            and self._fleet.sandboxes[record.id].image_id == sandbox.image_id
            and self._retires_at(record) > anyio.current_time()
        )

    async def _find_target(self, sandbox: PooledSandbox) -> PooledSandbox:
        """Return another sandbox that can keep the checkpoints of a sandbox.

        Raises:
            ConfigError: If a sandbox of the template has another image: launching one more would not help.
            ExecError: As `SandboxPool.prewarm`.
        """
        template, records = sandbox.template, self._fleet.state.sandboxes

        def find() -> list[SandboxRecord]:
            return [each for each in records.values() if self._outlives(each, sandbox)]

        if not find():
            now = anyio.current_time()
            ready = [each for each in records.values() if each.available and each.template == template.key]
            if {self._fleet.sandboxes[each.id].image_id for each in ready} - {sandbox.image_id}:
                changed = f"the image {template.image!r} has changed since its sandbox was launched"
                raise ConfigError(f"{changed}: prepare slots again, and make checkpoints of them")
            unsuited = sum(self._retires_at(each, keeps_checkpoints=False) > now for each in ready)
            await self._queue.warm(template, unsuited + 1)
        if not (suited := find()):
            raise ChannelLost("no other sandbox is ready")
        return self._fleet.sandboxes[max(suited, key=self._retires_at).id]
