"""Each disaster of the table is what the documentation says of it."""

from __future__ import annotations

import os

import pytest

from tests.chaos.daemon import possible
from tests.chaos.table import SHORT, line, meaning, rows, written
from tests.conftest import require_engine

ROWS = rows(SHORT)
OWN_DAEMON = ("restart", "live-restore")
MOUNTS = ("memory-slot", "disk-local")


def test_the_table_has_these_rows_in_this_order() -> None:
    assert list(written()) == [row.what for row in ROWS.values()]


@pytest.mark.anyio
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if row.engine == "local" else getattr(pytest.mark, row.engine))
        for name, row in ROWS.items()
    ],
)
async def test_it_is_as_documented(name: str) -> None:
    require_engine(ROWS[name].engine)
    if os.geteuid() and name in MOUNTS:
        pytest.skip("limits of memory and small file systems on local need root")
    if name in OWN_DAEMON and not possible():
        pytest.skip("a second Docker daemon needs root, dockerd and unshare on this machine")
    row = ROWS[name]
    seen = await row.run()
    assert meaning(line(row, seen)) == meaning(written()[row.what])
    assert seen.seconds < row.limit_s
