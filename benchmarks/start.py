"""What it costs to start: importing the library, and the command line, beside an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.contender import Sample

DISCIPLINE = "start of a process"
_CLI = (sys.executable, "-m", "hermes_exec.cli.main")
_NOTHING = "python -c pass"


class Start(NamedTuple):
    """A process that is started and ends by itself; `base` is the name of the one that it is compared with."""

    name: str
    base: str
    command: tuple[str, ...]


STARTS = (
    Start(_NOTHING, _NOTHING, (sys.executable, "-c", "pass")),
    Start("import hermes_exec", _NOTHING, (sys.executable, "-c", "import hermes_exec")),
    Start("import SandboxPool", _NOTHING, (sys.executable, "-c", "from hermes_exec import SandboxPool")),
    Start("hermes-exec --help", _NOTHING, (*_CLI, "--help")),
    Start("hermes-exec run -- true", _NOTHING, (*_CLI, "run", "--", "true")),
)


def measure(rounds: int) -> dict[str, Sample]:
    """Start each of them once a round, one after the other."""
    samples = {start.name: Sample() for start in STARTS}
    for number in range(rounds + 1):
        for start in STARTS:
            begin = time.perf_counter()
            subprocess.run(start.command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
            took = time.perf_counter() - begin
            if number:  # the first round compiles and fills caches
                samples[start.name].add([took], took)
    return samples
