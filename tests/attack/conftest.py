"""A plain run fires each attack on one level; `--whole` on all of them."""

from __future__ import annotations

import pytest

from tests.attack.levels import LEVELS
from tests.support.sample import rank


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not of the sample."""
    levels = list(LEVELS)
    for item in items:
        if item.path.name != "test_attacks.py" or not isinstance(item, pytest.Function):
            continue
        parameters = item.callspec.params
        row = str(parameters.get("row") or parameters["own_row"])
        if levels[rank(row) % len(levels)] != parameters.get("level", levels[0]):
            item.add_marker(pytest.mark.whole)
