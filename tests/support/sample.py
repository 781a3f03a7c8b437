"""Which tests a plain run takes: always the same, unless `HERMES_SAMPLE_SEED` picks another sample by hand.

`--whole` runs all. A plain run leaves out what is marked `whole`, which costs much or repeats others, and, where many
sets of parameters start sandboxes or compute long, all but a fifth of a test's sets: each test runs with one at least.

What is marked `loops` runs on both event loops with `--whole`, else on one. Half of it is marked `newest` here, which
is what `make test` runs on the newest Python.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
SEED = os.environ.get("HERMES_SAMPLE_SEED", "0")
THINNED = (
    "attack/test_bounded", "chaos", "e2e", "faults/test_sample", "unit/agent/parsers/test_linear",
    "unit/agent/parsers/test_roundtrip", "unit/agent/tokens/test_episodes",
)  # fmt: skip
"""Parts of the tests of which a plain run takes a fifth of each test's sets of parameters."""


def rank(name: str) -> int:
    """A number that is the same in every run, and another one with another seed."""
    return zlib.crc32(f"{SEED} {name}".encode())


def mark_newest(items: Iterable[pytest.Item]) -> None:
    """Mark half of what is for both event loops for the newest Python."""
    for item in items:
        if item.get_closest_marker("loops") and rank(_name(item)) % 4 < 2:
            item.add_marker(pytest.mark.newest)


def left_out(items: Iterable[pytest.Item], *, whole: bool) -> set[pytest.Item]:
    """The tests that are not of this run."""
    items = list(items)
    left = {item for item in items if not _on_its_loop(item, whole=whole)}
    if whole:
        return left
    left |= {item for item in items if item.get_closest_marker("whole")}
    sets: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item not in left and item.path.relative_to(TESTS).as_posix().startswith(THINNED):
            sets[item.nodeid.partition("[")[0]].append(item)
    for of_one_test in sets.values():
        of_one_test.sort(key=lambda item: rank(_name(item)))
        left.update(of_one_test[-(-len(of_one_test) // 5) :])
    return left


def _name(item: pytest.Item) -> str:
    """The name of a test, the same on both event loops."""
    return item.nodeid.replace("trio", "asyncio")


def _on_its_loop(item: pytest.Item, *, whole: bool) -> bool:
    """Tell whether a test is to run on its event loop, if that is from the fixture of tests/conftest.py: a module with
    a fixture of its own keeps what it wants. Of what the newest Python runs, half is on trio.
    """
    loop = getattr(getattr(item, "callspec", None), "params", {}).get("anyio_backend")
    definitions = (
        item._fixtureinfo.name2fixturedefs.get("anyio_backend", ()) if isinstance(item, pytest.Function) else ()
    )
    if not definitions or definitions[-1].baseid != "tests":
        return True
    if whole and item.get_closest_marker("loops"):
        return True
    return loop == ("trio" if item.get_closest_marker("loops") and rank(_name(item)) % 4 == 0 else "asyncio")
