"""`python -m tests.packages` runs the suites in all places and compares the verdicts, test for test."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from docker import from_env
from rich.console import Console
from rich.table import Table

from tests.images.build import ensure
from tests.packages.places import Verdicts, in_container, in_slot, on_host
from tests.packages.suites import SUITES, Suite, fetched


def main() -> int:
    """Run and compare; the exit code is 1 when a verdict differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.packages", description=__doc__)
    parser.add_argument("names", nargs="*", help="packages; all when none is named")
    asked = parser.parse_args()
    console = Console(stderr=True)
    image = ensure(from_env(), "debian")
    table = Table(title="verdicts outside, and which of them differ in a slot")
    for column in ("package", "host", "local slot differs", "container", "Docker slot differs"):
        table.add_column(column)
    differing = []
    for suite in SUITES:
        if asked.names and suite.name not in asked.names:
            continue
        cells = []
        for outside, inside in places(suite, image, console):
            different = {
                test: (outside.get(test, "not there"), inside.get(test, "not there"))
                for test in sorted(outside.keys() | inside.keys())
                if outside.get(test) != inside.get(test)
            }
            differing += [f"{suite.name} {test}: {a} outside, {b} in the slot" for test, (a, b) in different.items()]
            cells += [", ".join(f"{n} {what}" for what, n in Counter(outside.values()).items()), str(len(different))]
        table.add_row(f"{suite.name} {suite.version}", *cells)
    console.print(table)
    for line in differing:
        console.print(line, markup=False, soft_wrap=True)
    return 1 if differing else 0


def places(suite: Suite, image: str, console: Console) -> list[tuple[Verdicts, Verdicts]]:
    """What came out outside and in a slot, for both backends."""
    folder = fetched(suite)
    with console.status(f"{suite.name} on the host and in a local slot"):
        local = on_host(suite, folder), in_slot(suite, folder)
    with console.status(f"{suite.name} in a container and in a Docker slot"):
        docker = in_container(suite, folder, image), in_slot(suite, folder, image)
    return [local, docker]


if __name__ == "__main__":
    sys.exit(main())
