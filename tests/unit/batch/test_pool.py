"""The pool of a batch run has room for all of its workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_agent import ScriptedModel
from hermes_batch import BatchConfig

OWN_SLOTS = [{"host": "a", "slots": 8}, {"host": "b", "slots": 3}]


@pytest.mark.parametrize(
    ("backend", "options", "most"),
    [
        ("local", {}, 64),
        ("local", {"slots_per_sandbox": 5}, 20),
        ("ssh", {"hosts": ["a", "b"]}, 64),
        ("ssh", {"hosts": OWN_SLOTS[:1]}, 24),
        ("ssh", {"hosts": OWN_SLOTS}, 33),
    ],
)
def test_all_workers_have_a_slot(backend: str, options: dict[str, Any], most: int, tmp_path: Path) -> None:
    config = BatchConfig(
        dataset=tmp_path / "prompts.jsonl",
        out=tmp_path / "out",
        model=ScriptedModel([]),
        backend=backend,
        backend_options=options,
        workers=17,
    )
    assert config.make_pool().stats().slots_most == most
