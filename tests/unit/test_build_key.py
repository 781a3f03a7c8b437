"""A change of anything that is compiled into the runner makes the next build."""

from __future__ import annotations

import re
from pathlib import Path

from hatch_build import is_source

RUNNER = Path(__file__).resolve().parents[2] / "runner"


def test_every_embedded_file_is_a_source() -> None:
    embedded = [
        path.parent / name
        for path in RUNNER.rglob("*.go")
        for line in re.findall(r"^//go:embed (.+)$", path.read_text(), re.MULTILINE)
        for name in line.split()
    ]
    assert embedded
    assert [path for path in embedded if not path.is_file() or not is_source(path)] == []
