"""Each disaster of the table is what the documentation says of it."""

from __future__ import annotations

import os

import pytest

from tests.chaos.daemon import possible
from tests.chaos.table import ELSEWHERE, SHORT, line, meaning, rows, written
from tests.conftest import require_engine

ROWS = rows(SHORT)
OWN_DAEMON = ("restart", "live-restore")
MOUNTS = ("memory-slot", "disk-local")
LOCAL = ("memory-slot", "disk-local", "driver-killed-local")


def test_the_table_has_these_rows_in_this_order() -> None:
    assert list(written()) == [row.what for row in ROWS.values()]


def engine_of(name: str) -> str:
    """Where a disaster happens."""
    last = name.rpartition("-")[2]
    return last if last in ELSEWHERE else "local" if name in LOCAL else "docker"


@pytest.mark.anyio
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if engine_of(name) == "local" else getattr(pytest.mark, engine_of(name)))
        for name in ROWS
    ],
)
async def test_it_is_as_documented(name: str) -> None:
    require_engine(engine_of(name))
    if os.geteuid() and name in MOUNTS:
        pytest.skip("limits of memory and small file systems on local need root")
    if name in OWN_DAEMON and not possible():
        pytest.skip("a second Docker daemon needs root, dockerd and unshare on this machine")
    row = ROWS[name]
    seen = await row.run()
    assert meaning(line(row, seen)) == meaning(written()[row.what])
    assert seen.seconds < row.limit_s
