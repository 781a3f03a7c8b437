"""`python -m tests.fuzz channel|pool|driver --frames N` has hostile conversations until so many frames were sent.

`--seed S` has the one of that seed alone, and tells what was wrong with it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count

import anyio

from tests.fuzz.drivers import Runner, attack
from tests.fuzz.episodes import Told, channel_episode, impatient
from tests.fuzz.pools import pool_episode

AT_ONCE = 8
SAID_EVERY_S = 15.0
STUCK_S = 120.0
MOST_MEMORY_MB = 512
Episode = Callable[[int], Awaitable[Told]]


class Tally:
    """What happened so far, told every few seconds. A program that does nothing for long tells where it is and ends."""

    def __init__(self, name: str, frames: int) -> None:
        self.name, self.wanted = name, frames
        self.episodes = self.frames = self.calls = self.results = self.memory_mb = 0
        self.wrong: list[str] = []
        self.begun = self.said = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether enough was sent, or something found."""
        return self.frames >= self.wanted or bool(self.wrong)

    def add(self, told: Told) -> None:
        """Count an episode."""
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        self.episodes += 1
        self.frames += told.frames
        self.calls += told.calls
        self.results += told.results
        self.wrong += [f"seed {told.seed}: {what}" for what in told.wrong]
        self.memory_mb = max(self.memory_mb, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
        if self.memory_mb > MOST_MEMORY_MB:
            self.wrong.append(f"{self.memory_mb} MiB of memory at seed {told.seed}")
        if time.monotonic() - self.said > SAID_EVERY_S:
            self.said = time.monotonic()
            print(f"{self.name}: {self.frames:,} of {self.wanted:,} frames", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """One line of JSON."""
        seconds = round(time.monotonic() - self.begun)
        told = {"name": self.name, "inputs": self.frames, "crashes": len(self.wrong), "memory_mb": self.memory_mb}
        return json.dumps(
            {**told, "seconds": seconds, "episodes": self.episodes, "calls": self.calls, "results": self.results}
        )


def driver_against(episode: Episode, tally: Tally, seeds: Iterator[int]) -> None:
    """Episodes of the driver with hostile runners, some at once."""

    async def worker() -> None:
        while not tally.done:
            tally.add(await episode(next(seeds)))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE if tally.name == "channel" else 1):
                tasks.start_soon(worker)

    anyio.run(main)


def runner_against(tally: Tally, seeds: Iterator[int]) -> None:
    """Hostile streams to a real runner."""
    with Runner() as runner:
        while not tally.done:
            told = Told(seed := next(seeds))
            try:
                told.frames = attack(runner, seed)
            except (AssertionError, OSError, EOFError) as error:
                told.wrong.append(f"{type(error).__name__}: {error}")
            tally.add(told)
            tally.memory_mb = runner.memory_kb >> 10
        if tally.wrong:
            print(runner.log()[-4000:], file=sys.stderr)


@contextmanager
def watched() -> Iterator[None]:
    """End the program, with the place where it is, when nothing happens for long."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """The exit code is 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("what", choices=("channel", "pool", "driver"))
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    tally = Tally(asked.what, asked.frames if asked.seed is None else 1)
    seeds = count(0 if asked.seed is None else asked.seed)
    with watched(), impatient():
        if asked.what == "driver":
            runner_against(tally, seeds)
        else:
            driver_against({"channel": channel_episode, "pool": pool_episode}[asked.what], tally, seeds)
    for line in tally.wrong:
        print(
            line, f"(again with: python -m tests.fuzz {asked.what} --seed {line.split(':')[0].removeprefix('seed ')})"
        )
    print(tally.summary())
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
