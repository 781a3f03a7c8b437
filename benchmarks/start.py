"""The cost of a start: importing the library, and the command line, compared with an interpreter that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.measurements import Discipline, Measurements, Sample, progress
from benchmarks.options import Options

DISCIPLINE, IMPORT, IMPORT_POOL = "start of a process", "import hermes_exec", "import SandboxPool"
RUN = "hermes-exec run -- true"
_CLI = (sys.executable, "-m", "hermes_exec.cli.main")
_NOTHING = "python -c pass"
STARTS = {
    _NOTHING: (sys.executable, "-c", "pass"),
    IMPORT: (sys.executable, "-c", "import hermes_exec"),
    IMPORT_POOL: (sys.executable, "-c", "from hermes_exec import SandboxPool"),
    "hermes-exec --help": (*_CLI, "--help"),
    RUN: (*_CLI, "run", "--", "true"),
}


async def measure(options: Options) -> Measurements:
    """Start each program once per round, one after the other."""
    discipline = Discipline(DISCIPLINE, "times", dict.fromkeys(STARTS, _NOTHING))
    # Installed packages are compiled, even if this environment disables bytecode for new files.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for number in range(2 * options.rounds + 1):
        progress(f"{DISCIPLINE}: round {number} of {2 * options.rounds}")
        for name, command in STARTS.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, env=env)
            duration_s = time.perf_counter() - begin
            # The first round compiles and fills caches.
            (discipline.sample(name) if number else Sample()).add_one(duration_s)
    return Measurements([discipline])
