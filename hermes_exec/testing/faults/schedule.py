"""The schedule of faults: drawn from the seed and the numbers of sandbox and stream, not from the clock."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable
from typing import NamedTuple

from hermes_exec.checks import validate_timeout
from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError

STREAM_FAULTS = ("cut", "half-close", "lose", "stall", "delay", "split", "bytewise")
"""Faults of a stream: it ends; one direction ends; one direction loses all further data silently; one or both
directions stall; each read or write is delayed; data arrives in small pieces, or byte by byte.
"""
SANDBOX_FAULTS = ("kill-attach", "freeze", "kill-runner", "kill-sandbox", "fill-disk", "jump-clock")
"""Faults of a sandbox: the process that carries the stream is killed; the runner is stopped and continued; the
runner is killed; the sandbox is removed; its disk is full for a while (only one of at most a gigabyte is filled); the
wall clock of this process jumps and jumps back.
"""
LAUNCH_FAULTS = ("refuse-launch", "slow-launch")
"""Faults of a launch: it fails, or it takes longer."""

WEIGHTS = {"cut": 3.0, "half-close": 1.0, "lose": 0.5, "stall": 1.0, "delay": 2.0, "split": 2.0, "bytewise": 2.0}
MEAN_BYTES = 30_000.0
GROWTH = 1.6
"""The factor by which each reopened stream works longer than the previous one, so that work always progresses."""


class Injected(NamedTuple):
    """A fault that happened: seconds since the schedule was created, numbers of sandbox and stream, kind, details."""

    at_s: float
    sandbox: int
    stream: int
    what: str
    detail: str

    def __str__(self) -> str:
        where = f"sandbox {self.sandbox}" + (f" stream {self.stream}" if self.stream else "")
        return f"{self.at_s:8.3f} s  {where}: {self.what} {self.detail}".rstrip()


class Faults:
    """A schedule of faults, and the log of those that happened.

    `SandboxPool(faulty(LocalConfig(), Faults(seed=7)))` is a pool with faults. `log` lists them.

    Args:
        seed: The same seed gives the same faults for the same order of launches and streams.
        kinds: Names of `STREAM_FAULTS`, `SANDBOX_FAULTS` and `LAUNCH_FAULTS` (default: all).
        sandbox_mean_s: Mean time in seconds until something happens to a sandbox; each sandbox has one such fault.

    Raises:
        ConfigError: If a kind is unknown, or the mean is not a number of seconds above 0.
    """

    def __init__(self, seed: int, kinds: Iterable[str] | None = None, *, sandbox_mean_s: float = 3.0) -> None:
        known = (*STREAM_FAULTS, *SANDBOX_FAULTS, *LAUNCH_FAULTS)
        self.seed = seed
        if isinstance(kinds, str):
            raise ConfigError(f"kinds must be a list of names, not the text {kinds!r}")
        self.kinds = known if kinds is None else tuple(dict.fromkeys(kinds))
        for kind in self.kinds:
            if kind not in known:
                raise ConfigError(f"there is no fault {kind!r}; {nearest(str(kind), known)}")
        if validate_timeout(sandbox_mean_s, "sandbox_mean_s") is None:
            raise ConfigError("sandbox_mean_s must be a number of seconds, not None")
        self.sandbox_mean_s = sandbox_mean_s
        self.log: list[Injected] = []
        self._sandboxes, self._launches = itertools.count(1), itertools.count(1)
        self._began = time.monotonic()

    def __repr__(self) -> str:
        return f"Faults(seed={self.seed}, kinds={self.kinds!r}, sandbox_mean_s={self.sandbox_mean_s:g})"

    def note(self, sandbox: int, stream: int, what: str, detail: str = "") -> None:
        """Add a fault to the log. Safe from any thread."""
        self.log.append(Injected(time.monotonic() - self._began, sandbox, stream, what, detail))

    def of(self, group: Iterable[str]) -> list[str]:
        """Return the kinds of a group that this schedule includes."""
        return [kind for kind in group if kind in self.kinds]

    def launch(self) -> LaunchFate:
        """Draw the fate of the next launch."""
        number = next(self._launches)
        draw = random.Random(f"{self.seed}/launch/{number}")
        kinds = self.of(LAUNCH_FAULTS)
        refuse = draw.random() < 0.15 and "refuse-launch" in kinds
        slow = draw.random() < 0.3 and "slow-launch" in kinds
        return LaunchFate(number, refuse, draw.uniform(0.05, 1.0) if slow else 0.0)

    def sandbox(self) -> SandboxFate:
        """Draw the fate of the newest sandbox."""
        number = next(self._sandboxes)
        draw = random.Random(f"{self.seed}/box/{number}")
        kinds = self.of(SANDBOX_FAULTS)
        kind = draw.choice(kinds) if kinds and draw.random() < 0.6 else None
        after_s, lasts_s = draw.expovariate(1 / self.sandbox_mean_s), draw.uniform(0.2, 1.5)
        return SandboxFate(number, kind, after_s, lasts_s, draw.choice((-1, 1)) * 10 ** draw.uniform(0, 9))

    def stream(self, sandbox: int, stream: int) -> StreamFate:
        """Draw the fate of a sandbox's next stream."""
        return StreamFate(self, sandbox, stream)


class LaunchFate(NamedTuple):
    """The fate of a launch: whether it fails, and by how many seconds it is delayed."""

    number: int
    refuse: bool
    slow_s: float


class SandboxFate(NamedTuple):
    """The fate of a sandbox: the fault, its time and duration in seconds, and the size of a clock jump."""

    number: int
    kind: str | None
    after_s: float
    lasts_s: float
    jump_s: float


class Step(NamedTuple):
    """A step of a schedule: bytes that pass, or a pause or an end of this direction or of both."""

    size: int
    wait_s: float = 0.0
    both: bool = False
    cut: bool = False
    close: bool = False


class StreamFate:
    """The fate of one stream. Each direction has its own schedule, counted in its bytes."""

    def __init__(self, faults: Faults, sandbox: int, number: int) -> None:
        self.receiving = Direction(faults, sandbox, number, "receive")
        self.sending = Direction(faults, sandbox, number, "send")


class Direction:
    """The schedule of one direction of one stream."""

    def __init__(self, faults: Faults, sandbox: int, stream: int, name: str) -> None:
        self._faults, self._sandbox, self._stream, self._name = faults, sandbox, stream, name
        self._draw = random.Random(f"{faults.seed}/{sandbox}/{stream}/{name}")
        self._mean = MEAN_BYTES * GROWTH ** min(stream - 1, 40)
        self._kinds = faults.of(STREAM_FAULTS)
        self._left = self._distance()
        self._small = 0
        self._piece = 0
        self.lost = False
        """Whether data in this direction is lost from here on."""

    def _distance(self) -> float:
        return self._draw.expovariate(1 / self._mean) if self._kinds else float("inf")

    def step(self, available: int) -> Step:
        """Return how many of `available` bytes pass next, or 0 if a fault comes first."""
        if self.lost:
            return Step(available)
        if self._small > 0:
            size = min(available, self._draw.randint(1, self._piece), self._small)
            self._small -= size
            return Step(size)
        if self._left < 1:
            self._left = self._distance()
            return self._fault()
        size = int(min(available, self._left))
        self._left -= size
        return Step(size)

    def _fault(self) -> Step:
        (kind,) = self._draw.choices(self._kinds, [WEIGHTS[kind] for kind in self._kinds])
        match kind:
            case "cut":
                step = Step(0, cut=True)
            case "half-close":
                step = Step(0, close=True)
            case "lose":
                self.lost, step = True, Step(0)
            case "stall":
                # Some pauses are longer than the silence that the driver tolerates.
                longest_s = 2.0 if self._draw.random() < 0.8 else 8.0
                step = Step(0, self._draw.uniform(0.2, longest_s), both=self._draw.random() < 0.5)
            case "delay":
                step = Step(0, self._draw.uniform(0.001, 0.05))
            case _:
                self._piece = 1 if kind == "bytewise" else 64
                self._small = self._draw.randint(64, 64 * self._piece)
                step = Step(0)
        detail = "both ways" if step.both else self._name
        self._faults.note(self._sandbox, self._stream, kind, f"{detail} {step.wait_s:.3f} s" if step.wait_s else detail)
        return step
