"""`python -m tests.faults local 0-499` runs many seeds, a few at a time; a single one tells all that happened."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.engines import BACKENDS, options_of
from tests.faults.episode import Verdict, in_own_process


def main() -> int:
    """Run the seeds; the exit code is 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("seeds", help="a seed, or first-last")
    parser.add_argument("--at-once", type=int, default=2)
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    with options_of(asked.backend) as options:
        return run(asked.backend, seeds, asked.at_once, options)


def run(backend: str, seeds: range, at_once: int, options: dict[str, Any]) -> int:
    """Run the seeds, and print what came of them."""
    console = Console(stderr=True)
    verdicts: list[Verdict] = []
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with ThreadPoolExecutor(at_once) as threads, Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{backend} seeds", total=len(seeds))
        for future in as_completed([threads.submit(in_own_process, backend, seed, options) for seed in seeds]):
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
