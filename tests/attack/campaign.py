"""Fires attacks on a level in a process of its own, as the user that the level is about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.attack.arena import FEW
from tests.attack.fire import planted_programs
from tests.attack.levels import Level
from tests.attack.model import Outcome, Row
from tests.support.ordinary_user import ROOT, run_as_ordinary_user

TIMEOUT_S = 3600.0
MODULE = "tests.attack.in_process"


def campaign(
    level: Level, rows: Sequence[Row], long: bool = False, much: int = FEW, rounds: int | None = None
) -> dict[str, Outcome]:
    """The outcome of each of these rows; `long` measures the neighbour under those that use something up."""
    with planted_programs() as planted:
        where = [] if planted is None else [f"--planted={planted}"]
        where += [*(["--long"] if long else []), f"--much={much}", *([f"--rounds={rounds}"] if rounds else [])]
        told = _run(level, *where, level.id, *(row.id for row in rows))
    return {name: Outcome(**fields) for name, fields in json.loads(told).items()}


def alone(level: Level, rows: Sequence[Row]) -> dict[str, str]:
    """What these attacks achieve within one slot; empty where they achieve nothing."""
    achieved: dict[str, str] = json.loads(_run(level, "--alone", level.id, *(row.id for row in rows)))
    return achieved


def _run(level: Level, *words: str) -> bytes:
    if level.ordinary_user and os.geteuid() == 0:
        return run_as_ordinary_user(MODULE, *words, timeout_s=TIMEOUT_S)
    command = [sys.executable, "-m", MODULE, *words]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True).stdout
