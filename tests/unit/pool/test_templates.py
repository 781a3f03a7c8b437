"""Settings of sandboxes and slots as the backend and the runner get them."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.config import PoolConfig
from hermes_exec.pool.templates import Templates


@pytest.mark.parametrize(
    ("settings", "floor"),
    [({}, "landlock"), ({"min_isolation": "none"}, "none"), ({"min_isolation": "uid"}, "uid")],
)
def test_lowest_isolation_level_is_landlock_unless_another_is_written(settings: dict[str, Any], floor: str) -> None:
    template = Templates(PoolConfig(**settings), LocalConfig()).get(None, None)
    assert template.slot_params("s0", None)["floor"] == floor
