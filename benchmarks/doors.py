"""Adapters beside the sandboxes that their targets have themselves, as ratios within one run.

`python -m benchmarks.doors [TARGET ...]` runs `door_cases/<target>.py` in the environment of each target. A case prints
one JSON line for each measurement: `what`, and the seconds of each repetition with our sandbox (`ours_s`) and with the
target's (`theirs_s`), which take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.doors import ROOT, Door, DoorClosed, prepare

CASES = ROOT / "benchmarks" / "door_cases"
CASE_S = 1800.0


def main() -> int:
    """Run the cases and print a table of medians and ratios."""
    names = sorted(path.stem for path in CASES.glob("*.py") if path.stem not in {"__init__", "turns"})
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doors", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=f"default: {', '.join(names)}")
    console = Console()
    table = Table("target", "measured", "ours", "theirs", "ratio", title="Adapters beside their target's own sandbox")
    failed = False
    for name in parser.parse_args().names or names:
        try:
            for measured in run_case(name):
                ours, theirs = median(measured["ours_s"]), median(measured["theirs_s"])
                table.add_row(name, measured["what"], f"{ours:.3g} s", f"{theirs:.3g} s", f"{ours / theirs:.2g}")
        except (DoorClosed, subprocess.CalledProcessError) as error:
            console.print(f"{name}: {error}", style="red")
            failed = True
    console.print(table)
    return 1 if failed else 0


def run_case(name: str) -> Iterator[dict[str, Any]]:
    """Yield the measurements of a case, which runs in the environment of its target."""
    environment = prepare(Door.read(name))
    image = subprocess.run(
        [sys.executable, "-m", "tests.images.build", "--tag", "debian"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    command = [str(environment.python), "-m", f"benchmarks.door_cases.{name}", image.stdout.strip()]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=environment.env, timeout=CASE_S
    )
    for line in done.stdout.splitlines():
        if line.startswith('{"what"'):
            yield json.loads(line)


if __name__ == "__main__":
    sys.exit(main())
