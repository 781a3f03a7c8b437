"""`python -m tests.faults local 0-499` runs many seeds, a few at a time; a single one tells all that happened."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from threading import Event, Thread
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.daemon import own_daemon
from tests.engines import BACKENDS, Engine, engine_of, restart_of
from tests.faults.episode import Verdict, in_own_process


def main() -> int:
    """Run the seeds; the exit code is 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("seeds", help="a seed, or first-last")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--restart-s", type=float, help="restart the engine's server meanwhile, so often on average")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    with _engine(asked.backend, restarts=asked.restart_s is not None) as engine, ExitStack() as held:
        if asked.restart_s is not None:
            if engine.restart is None:
                parser.error(f"{asked.backend} has no server that could be restarted")
            held.enter_context(restarted(engine.restart, asked.restart_s, seeds.start))
        return run(asked.backend, seeds, asked.at_once, engine.options, restarts=asked.restart_s is not None)


@contextmanager
def _engine(backend: str, *, restarts: bool) -> Iterator[Engine]:
    if backend != "docker" or not restarts:
        with engine_of(backend) as engine:
            yield engine
        return
    with own_daemon("--live-restore") as daemon:  # that of the machine is not for us to restart
        yield Engine({"image": daemon.image, "base_url": daemon.url}, restart_of(daemon))


@contextmanager
def restarted(restart: Callable[[], object], mean_s: float, seed: int) -> Iterator[None]:
    """Restart a server time after time."""
    over, pauses = Event(), Random(seed)
    count = 0

    def go_on() -> None:
        nonlocal count
        while not over.wait(pauses.uniform(0.5, 1.5) * mean_s):
            restart()
            count += 1

    thread = Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(f"its server was restarted {count} times")


def run(backend: str, seeds: range, at_once: int, options: dict[str, Any], *, restarts: bool) -> int:
    """Run the seeds, and print what came of them."""
    console = Console(stderr=True)
    verdicts: list[Verdict] = []
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with ThreadPoolExecutor(at_once) as threads, Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{backend} seeds", total=len(seeds))
        one = partial(in_own_process, backend, options=options, restarts=restarts)
        for future in as_completed([threads.submit(one, seed) for seed in seeds]):
            verdict = future.result()
            verdicts.append(verdict)
            progress.advance(task)
            if verdict.wrong:
                progress.console.print(f"seed {verdict.seed} FAILED; again with: {verdict.replay}", markup=False)
                for line in verdict.wrong:
                    progress.console.print(f"  {line}", markup=False)
    if len(verdicts) == 1:
        print(*verdicts[0].log, sep="\n")
    faults: Counter[str] = sum((Counter(v.faults) for v in verdicts), Counter())
    failed = sorted(v.seed for v in verdicts if v.wrong)
    print(
        f"{backend}: {len(verdicts)} seeds, {len(failed)} failed {failed or ''}; "
        f"{sum(v.commands for v in verdicts)} commands, {sum(v.results for v in verdicts)} with a result, "
        f"{sum(v.unknown for v in verdicts)} unknown, {sum(v.refused for v in verdicts)} requests refused, "
        f"{sum(v.full for v in verdicts)} times no room; "
        f"{sum(v.seconds for v in verdicts) / len(verdicts):.1f} s each; "
        f"faults: {', '.join(f'{what} {count}' for what, count in faults.most_common())}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
