"""Where a slot that is lent is: the pool moves and ends it, its `Slot` only reads it."""

from __future__ import annotations

from collections.abc import Callable

from hermes_exec.slot.answers import SlotFacts
from hermes_exec.slot.scope import SlotScope


class Tenancy:
    """The facts of a lent slot, its box, and the scope of its calls; all of them change when it goes on elsewhere.

    `closed` says why it is over, None while it lasts.
    """

    def __init__(self, facts: SlotFacts, workdir: str | None, sandbox: str, new_scope: Callable[[], SlotScope]) -> None:
        self.facts = facts
        self.workdir = workdir or facts.workspace
        self.sandbox = sandbox
        self.closed: str | None = None
        self.resets = 0
        self._new_scope = new_scope
        self.scope = new_scope()

    def renew(self) -> SlotScope:
        """Begin a new scope after a reset."""
        self.scope = self._new_scope()
        self.resets += 1
        if self.closed is not None:
            self.scope.expire(self.closed)
        return self.scope

    def move(self, other: Tenancy) -> None:
        """Go on in the place of another slot, which nobody holds."""
        self.facts, self.workdir, self.sandbox = other.facts, other.workdir, other.sandbox
        self.scope, self._new_scope = other.scope, other._new_scope
        self.resets += 1
        if self.closed is not None:
            self.scope.expire(self.closed)

    def expire(self, why: str) -> None:
        """Close it for its holder from now on."""
        if self.closed is None:
            self.closed = why
        self.scope.expire(self.closed)
        # Also where a reset had ended the scope and then failed.
        self.scope.closed = self.closed

    async def end(self, why: str) -> None:
        """As `expire`; calls under way have left when this returns."""
        self.expire(why)
        await self.scope.close(why)
