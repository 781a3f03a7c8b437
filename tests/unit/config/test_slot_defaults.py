"""The number of slots in a sandbox that documentation and docstrings name."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from hermes_exec import PoolConfig, SandboxPool, config_type
from hermes_exec.backends.registry import BUILT_IN

DOCS = Path(__file__).parents[3] / "docs"
DEFAULTS = {"local": 64, "ssh": 64, "nomad": 8, "modal": 8, "docker": 1, "singularity": 1}


def test_backends_have_documented_slots() -> None:
    assert {name: config_type(name).default_slots for name in BUILT_IN} == DEFAULTS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ((DOCS / "configuration.md").read_text(), "`local`, `ssh`: 64; `nomad`, `modal`: 8; others: 1"),
        ((DOCS / "slots.md").read_text(), "64 slots on `local` and `ssh`, 8 on `nomad` and `modal`, and 1 on `docker`"),
        (SandboxPool.__doc__ or "", "(local and ssh 64, nomad and modal 8, others 1)"),
        (inspect.getsource(PoolConfig), "64 on local and ssh, 8 on nomad and modal, 1 elsewhere"),
    ],
    ids=["configuration", "slots", "SandboxPool", "PoolConfig"],
)
def test_default_slots_are_documented(text: str, words: str) -> None:
    assert words in text
