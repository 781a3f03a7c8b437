"""The calls, and the interface of all contenders."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

NOOP = ["bash", "-c", "true"]
SMALL = b"x" * 1024
LARGE = b"x" * (1 << 20)
OUTPUT_BYTES = 10 << 20
OUTPUT_SCRIPT = f"head -c {OUTPUT_BYTES} /dev/zero"


class Unsupported(Exception):
    """Raised by a contender that does not support a measurement."""


class ContenderMissing(Exception):
    """Raised when a contender cannot take part on this machine. The message contains the reason."""


class Contender(Protocol):
    """One way to run commands and to move files."""

    async def noop(self) -> None:
        """Run `bash -c true`."""

    async def write(self, data: bytes) -> None:
        """Write a file."""

    async def read(self, data: bytes) -> None:
        """Read the file back and compare its content."""

    async def output(self) -> None:
        """Run a command that prints OUTPUT_BYTES bytes, and read all of them."""


class SelfTimed(Protocol):
    """A contender that measures empty commands itself, inside the sandbox."""

    async def time_noops(self, seconds: float, at_once: int) -> tuple[list[float], float]:
        """Return the times of all calls and the whole elapsed time, in seconds."""


class Floors(NamedTuple):
    """The names of the reference entries for ratios: with one call at a time, and with many."""

    one: str
    many: str


@dataclass(frozen=True)
class Entry:
    """A contender by name."""

    name: str
    floors: Floors
    open: Callable[[], AbstractAsyncContextManager[Contender | SelfTimed]]
