"""A batch run on Docker under disasters: `python -m tests.chaos.batch` does it at full size.

Sandboxes are killed at random, the driver is killed and resumed, the disk of the results is full once, and the endpoint
is unkind. Afterwards each sample has one record, whose reward is the right one, and no sandbox is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker import DockerClient
from docker.errors import APIError

from tests.chaos.outside import containers_of
from tests.e2e.agent.flaky_endpoint import Faults, flaky_endpoint
from tests.images.build import ensure
from tests.support.disks import empty, fill, small_disk

ROOT = Path(__file__).resolve().parents[2]
TURNS = 3
COMMAND = "echo {episode}-{turn} >> made; sleep 0.1"
_LIMIT_S = 1800.0
_LAST_INVOCATIONS = 6


@dataclass(frozen=True)
class Plan:
    """How large a run is, and what happens to it."""

    prompts: int = 200
    samples: int = 4
    workers: int = 64
    kills: int = 5
    pause_s: float = 1.5
    """Between two kills of sandboxes, on average."""
    most_sandboxes: int | None = None
    """How many sandboxes are killed at most. Without a bound, a slow machine is kept from making progress."""
    faults: Faults = field(default_factory=lambda: Faults(faults=0.03, turns=TURNS, command=COMMAND))
    seed: int = 1
    options: tuple[str, ...] = ()


@dataclass
class Evidence:
    """What happened to a run, and what is left of it."""

    records: list[dict[str, Any]] = field(default_factory=list)
    broken_lines: int = 0
    sandboxes_killed: int = 0
    codes: list[int] = field(default_factory=list)
    full_disk: str = ""
    left: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    last_error: str = ""


def write_prompts(path: Path, count: int) -> None:
    """Write prompts whose checks pass for the even ones, if each of their commands ran once."""
    rows = []
    for number in range(count):
        lines = "".join(f"{number}-{turn}\\n" for turn in range(TURNS - 1))
        check = f"printf '{lines}' | cmp - made" if number % 2 == 0 else "grep never made"
        rows.append(json.dumps({"id": f"{number}", "prompt": f"episode {number}", "check": check}) + "\n")
    path.write_text("".join(rows))


class Run:
    """A batch run in processes of its own."""

    def __init__(self, plan: Plan, directory: Path, disk: Path, url: str, image: str) -> None:
        self.run_id = f"chaos-batch-{time.time_ns()}"
        self.out = disk / "out"
        self._log = directory / "driver.log"
        self._begin = [
            *("batch", "run", str(directory / "prompts.jsonl"), "--out", str(self.out), "--model", "m"),
            *("--base-url", url, "--backend", "docker", "--image", image, "--option", f"run_id={self.run_id}"),
            *("--option", "network=false", "--samples", str(plan.samples), "--workers", str(plan.workers)),
            *("--retries", "5", "--json", *plan.options),
        ]

    def start(self) -> subprocess.Popen[bytes]:
        """Begin the run, or continue it."""
        begun = (self.out / "run.json").exists()
        arguments = ["batch", "resume", str(self.out), "--json"] if begun else [*self._begin, "--overwrite"]
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "hermes_exec.cli.main", *arguments]
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def count_lines(self) -> int:
        """Return the number of records that were written."""
        with contextlib.suppress(OSError):
            return (self.out / "trajectories.jsonl").read_bytes().count(b"\n")
        return 0

    def log_tail(self) -> str:
        """Return the last lines that the drivers wrote."""
        return self._log.read_text(errors="replace")[-3000:]


@contextmanager
def killing_sandboxes(client: DockerClient, run_id: str, plan: Plan, evidence: Evidence) -> Iterator[None]:
    """Kill containers of the run at random within the block."""
    chance, stopped = random.Random(plan.seed), threading.Event()

    def strike() -> None:
        most = plan.most_sandboxes
        while (most is None or evidence.sandboxes_killed < most) and not stopped.wait(
            chance.uniform(0.3, 2 * plan.pause_s)
        ):
            names = sorted(containers_of(client, run_id))
            if names:
                with contextlib.suppress(APIError):
                    client.api.remove_container(chance.choice(names), force=True, v=True)
                    evidence.sandboxes_killed += 1

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def survive(plan: Plan) -> Evidence:
    """Do a run under all disasters, and return what is left."""
    evidence, began = Evidence(), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        small_disk(Path(name) / "disk") as disk,
        contextlib.closing(docker.from_env()) as client,
        flaky_endpoint(plan.faults) as server,
    ):
        directory = Path(name)
        write_prompts(directory / "prompts.jsonl", plan.prompts)
        run = Run(plan, directory, disk, server.base_url, ensure(client, "busybox"))
        with killing_sandboxes(client, run.run_id, plan, evidence):
            _kill_drivers(plan, run, evidence, disk)
        for _ in range(_LAST_INVOCATIONS):
            evidence.codes.append(run.start().wait(_LIMIT_S))
            if evidence.codes[-1] == 0:
                break
        evidence.left = _wait_for_end(client, run.run_id)
        evidence.seconds = time.monotonic() - began
        evidence.last_error = run.log_tail()
        for line in (run.out / "trajectories.jsonl").read_bytes().splitlines():
            try:
                evidence.records.append(json.loads(line))
            except ValueError:
                evidence.broken_lines += 1
    return evidence


def _kill_drivers(plan: Plan, run: Run, evidence: Evidence, disk: Path) -> None:
    """Kill drivers, each after its share of the records, and fill the disk for one of them."""
    total = plan.prompts * plan.samples
    for number in range(plan.kills + 1):
        driver = run.start()
        goal = total * (number + 1) // (plan.kills + 2)
        until = time.monotonic() + _LIMIT_S
        while run.count_lines() < goal and driver.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if number == plan.kills // 2:
            fill(disk)
            evidence.codes.append(driver.wait(_LIMIT_S))
            evidence.full_disk = run.log_tail()
            empty(disk)
        else:
            driver.kill()
            evidence.codes.append(driver.wait())


def _wait_for_end(client: DockerClient, run_id: str) -> dict[str, str]:
    until = time.monotonic() + 60
    while (left := containers_of(client, run_id)) and time.monotonic() < until:
        time.sleep(0.5)
    return left


def find_faults(plan: Plan, evidence: Evidence) -> list[str]:
    """Return what is wrong with the run, in words."""
    wanted = {(f"{number}", sample) for number in range(plan.prompts) for sample in range(plan.samples)}
    counts = Counter((str(record["id"]), int(record["sample"])) for record in evidence.records)
    faults = [f"{key} has {count} records" for key, count in counts.items() if count != 1]
    faults += [f"{key} has no record" for key in sorted(wanted - counts.keys())]
    faults += [f"{key} is no sample of the run" for key in counts.keys() - wanted]
    for record in evidence.records:
        right = "solved" if int(record["id"]) % 2 == 0 else "unsolved"
        if record["trainable"] and (record["solved"], record["reward"]) != (right, str(float(right == "solved"))):
            faults.append(f"{record['id']} is {record['solved']} with the reward {record['reward']}: {record['check']}")
        if not record["trainable"] and record["reward"] != "null":
            faults.append(f"{record['id']} has the reward {record['reward']} of an outage")
    if evidence.broken_lines:
        faults.append(f"{evidence.broken_lines} lines are no JSON")
    if evidence.left:
        faults.append(f"containers are left: {evidence.left}")
    if evidence.codes[-1] != 0:
        faults.append(f"the last invocation ended with {evidence.codes[-1]}: {evidence.last_error}")
    if "No space left on device" not in evidence.full_disk:
        faults.append(f"the full disk was not reported: {evidence.full_disk}")
    return faults


def main() -> int:
    """Do a run, and print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.batch", description=__doc__)
    for name in ("prompts", "samples", "workers", "kills", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Plan(), name))
    plan = Plan(**vars(parser.parse_args()))
    evidence = survive(plan)
    faults = find_faults(plan, evidence)
    print(f"{len(evidence.records)} records in {evidence.seconds:.0f} s, exit codes {evidence.codes}")
    print(f"{evidence.sandboxes_killed} sandboxes killed, {sum(r['attempts'] > 1 for r in evidence.records)} retried")
    print("\n".join(faults) or "each sample has one record, with the right reward; nothing is left")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
