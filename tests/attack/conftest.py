"""A plain run fires each attack on one rung, which the seed of the sample chooses; `--whole` on all of them."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.attack.rungs import RUNGS
from tests.attack.table import ROWS
from tests.conftest import SEED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not of the sample."""
    chosen = Random(int(os.environ[SEED]))
    sample = {row.id: chosen.choice(list(RUNGS)) for row in ROWS}
    for item in items:
        if item.path.name != "test_attacks.py" or not isinstance(item, pytest.Function):
            continue
        parameters = item.callspec.params
        rung = parameters.get("rung", next(iter(RUNGS)))
        if sample[str(parameters.get("row") or parameters["own_row"])] != rung:
            item.add_marker(pytest.mark.whole)
