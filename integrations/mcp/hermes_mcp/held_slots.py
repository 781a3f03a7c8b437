"""The slots that clients of the server hold, each with its Toolbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from hermes_exec.errors import ChannelLost, ExecError, ProtocolError, SandboxDied, SlotClosed
from hermes_exec.tools import Toolbox, ToolOptions

if TYPE_CHECKING:
    from hermes_exec import SandboxPool, Slot
    from hermes_exec.tools import HostTool

ToolsOf = Callable[["Slot | None"], Sequence["HostTool"]]
"""Returns the host tools of a slot; without a slot, tools that are only described."""
RELEASE_S = 30.0
_LOST = (SandboxDied, SlotClosed, ChannelLost, ProtocolError)


@dataclass
class HeldSlot:
    """A slot that is acquired at its first call."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    slot: Slot | None = None
    toolbox: Toolbox | None = None
    uses: int = 0
    idle_since: float = 0.0


@dataclass
class HeldSlots:
    """The slots of the clients, by key. A slot without a use for `idle_timeout_s` is released."""

    pool: SandboxPool
    toolsets: Sequence[str]
    tools_of: ToolsOf
    options: ToolOptions
    idle_timeout_s: float
    _held: dict[str, HeldSlot] = field(default_factory=dict)

    @asynccontextmanager
    async def toolbox(self, key: str | None) -> AsyncIterator[Toolbox]:
        """Yield the Toolbox of a client; without a key, one with a slot for this block only.

        A slot that is lost inside the block is dropped: the next block has a new one.

        Raises:
            ExecError: If the pool cannot be opened, or no slot be acquired. The next block tries again.
        """
        held = HeldSlot() if key is None else self._held.setdefault(key, HeldSlot())
        with self._use(held):
            try:
                async with held.lock:
                    if held.toolbox is None:
                        pool = await self.pool.open()
                        held.slot = slot = await pool.acquire()
                        held.toolbox = Toolbox(slot, self.toolsets, tools=self.tools_of(slot), options=self.options)
                yield held.toolbox
            except ExecError as error:
                if is_lost(error) and key is not None and self._held.get(key) is held:
                    await self.drop(key)
                raise
            finally:
                if key is None or self._held.get(key) is not held:  # dropped, perhaps before it had a slot
                    await self._release(held)

    @contextmanager
    def in_use(self, key: str) -> Iterator[None]:
        """Keep the slot of a client during the block, while a request of the client is open."""
        held = self._held.setdefault(key, HeldSlot())
        with self._use(held):
            yield
        if held.slot is None and not held.uses:
            self._held.pop(key, None)

    async def drop(self, key: str) -> None:
        """Release the slot of a client. Calls that run in it raise SlotClosed."""
        held = self._held.pop(key, None)
        if held is not None:
            await self._release(held)

    async def drop_idle(self) -> None:
        """Release slots that are not used, until cancelled."""
        while True:
            await anyio.sleep(min(30.0, max(0.05, self.idle_timeout_s / 10)))
            since = anyio.current_time() - self.idle_timeout_s
            for key, held in list(self._held.items()):
                if not held.uses and held.idle_since <= since:
                    await self.drop(key)

    @contextmanager
    def _use(self, held: HeldSlot) -> Iterator[None]:
        held.uses += 1
        try:
            yield
        finally:
            held.uses -= 1
            held.idle_since = anyio.current_time()

    async def _release(self, held: HeldSlot) -> None:
        slot, held.slot = held.slot, None
        if slot is None or held.toolbox is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_S), suppress(ExecError):
            await held.toolbox.aclose()
            await self.pool.release(slot)


def is_lost(error: ExecError) -> bool:
    """Return whether the slot of a call is gone."""
    return isinstance(error, _LOST) or isinstance(error.__cause__, _LOST)
