"""What is measured, and the face that all contenders share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

SMALL = b"x" * 1024
LARGE = b"x" * (1 << 20)
OUTPUT_BYTES = 10 << 20
OUTPUT_SCRIPT = f"head -c {OUTPUT_BYTES} /dev/zero"


class Unsupported(Exception):
    """Raised by a contender that has no way to do what is measured."""


class ContenderMissing(Exception):
    """Raised when a contender cannot take part on this machine; the message says why."""


class Contender(Protocol):
    """One way to run commands and to move files."""

    async def noop(self) -> None:
        """Run `bash -c true`."""

    async def write(self, data: bytes) -> None:
        """Write a file."""

    async def read(self, data: bytes) -> None:
        """Read back the file with this content, and compare."""

    async def output(self) -> None:
        """Run a command that prints OUTPUT_BYTES, and take them all."""


class SelfTimed(Protocol):
    """A contender that does the whole measurement of empty commands itself, inside of the box."""

    async def timed_noops(self, seconds: float, at_once: int) -> tuple[list[float], float]:
        """Return the times of all calls and the whole elapsed time, in seconds."""


@dataclass(frozen=True)
class Entry:
    """A contender by name. `base` names the entry that its ratios are against."""

    name: str
    base: str
    open: Callable[[], AbstractAsyncContextManager[Contender | SelfTimed]]


@dataclass
class Sample:
    """All that was measured of one contender in one discipline; times in milliseconds."""

    times_ms: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    missing: str | None = None

    def add(self, times_s: list[float], elapsed_s: float) -> None:
        """Add one slice of the run."""
        self.times_ms += [time * 1000 for time in times_s]
        self.elapsed_s += elapsed_s


Opened = AsyncIterator[Contender]
