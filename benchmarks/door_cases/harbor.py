"""harbor: jobs of 20 trials, eight at a time, beside its Docker environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.door_cases.turns import measure
from tests.doors.harbor.tasks import write_numbered_tasks

ROOT = Path(__file__).resolve().parents[2]
BUILT = subprocess.run([ROOT / ".ci" / "compose"], stdout=subprocess.PIPE, text=True, check=True)
ENV = os.environ | {"DOCKER_CONFIG": BUILT.stdout.strip(), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
IMAGE = sys.argv[1]
TRIALS = 20
OURS = ("-e", "hermes_harbor:HarborEnvironment")
OWN_ROOTS = (*OURS, "--ek", "slots_per_sandbox=8", "--ek", "max_sandboxes=2")
THEIRS = ("-e", "docker")
NUMBERS = count()


def run_job(agent: str, environment: tuple[str, ...]) -> None:
    """Run all tasks in a job, and check that each trial has the reward of its agent."""
    name = f"job-{next(NUMBERS)}"
    command = ["harbor", "run", "-p", "tasks", "-a", agent, "-n", "8", "--yes", "-q", "--job-name", name, "-o", "jobs"]
    subprocess.run([*command, *environment], cwd=DIRECTORY, env=ENV, stdout=subprocess.DEVNULL, check=True)
    results = [json.loads(path.read_text()) for path in (DIRECTORY / "jobs" / name).glob("*/result.json")]
    rewards = [result["verifier_result"]["rewards"]["reward"] for result in results]
    assert rewards == [1.0 if agent == "oracle" else 0.0] * TRIALS


with tempfile.TemporaryDirectory(prefix="harbor-jobs-") as directory:
    DIRECTORY = Path(directory)
    write_numbered_tasks(DIRECTORY / "tasks", IMAGE, TRIALS)
    for mode, options in (("a sandbox each", OURS), ("own roots", OWN_ROOTS)):
        ours, theirs = partial(run_job, "oracle", options), partial(run_job, "oracle", THEIRS)
        measure(f"{TRIALS} trials, oracle, {mode}", ours, theirs, 1)
