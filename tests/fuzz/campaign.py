"""`python -m tests.fuzz.campaign` runs every fuzzer of both ends, two at a time, and tells what each did.

`--share 0.01` does a hundredth of the work. What is found is named with the file or the seed that brings it back.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.fuzz.decoders import DECODERS

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "runner"
GROWN = ROOT / ".cache" / "fuzz"
MILLION = 1_000_000
# These write files, or hold a whole conversation with a server, for each input.
SLOW = {"FuzzPutTree": 40_000, "FuzzUnpack": 40_000, "FuzzStream": 60_000, "archive": 60_000}
CONVERSATIONS = {"channel": MILLION, "pool": 100_000, "driver": MILLION}
AT_ONCE = 2


@dataclass
class Job:
    """One fuzzer: how it is started, and what it did in the end."""

    name: str
    command: list[str]
    wanted: int
    directory: Path = ROOT
    inputs: int = 0
    memory_mb: int = 0
    seconds: float = 0.0
    failed: bool = False
    said: list[str] = field(default_factory=list)

    @property
    def hung(self) -> bool:
        """Whether what went wrong is that it did not end."""
        return self.failed and any("timeout" in line.lower() or "did not end" in line for line in self.said[-60:])

    def run(self) -> None:
        """Run it to its end."""
        begun = time.monotonic()
        process = subprocess.Popen(
            self.command,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            self.said = [*self.said[-400:], line.rstrip()]
            self._read(line)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.memory_mb = max(self.memory_mb, used.ru_maxrss >> 10)
        self.failed = process.returncode != 0
        self.seconds = time.monotonic() - begun

    def _read(self, line: str) -> None:
        if match := re.search(r"execs: (\d+)|number_of_executed_units: (\d+)|^#(\d+)\s", line):
            self.inputs = max(self.inputs, *(int(group) for group in match.groups() if group))
        elif line.startswith('{"name"'):
            told = json.loads(line)
            self.inputs, self.memory_mb = told["inputs"], told["memory_mb"]


def go_targets() -> Iterator[tuple[str, str]]:
    """Package and name of each target of the runner."""
    for file in sorted(RUNNER.rglob("*_test.go")):
        for name in re.findall(r"^func (Fuzz\w+)\(", file.read_text(), re.MULTILINE):
            yield file.parent.name, name


def go_jobs(share: float) -> Iterator[Job]:
    """Each target of the runner, compiled once a package."""
    programs: dict[str, Path] = {}
    for package, name in go_targets():
        directory = RUNNER / "internal" / package
        if package not in programs:
            programs[package] = GROWN / f"{package}.test"
            build = ["go", "test", "-c", "-fuzz=.", "-o", str(programs[package]), f"./internal/{package}"]
            subprocess.run(build, cwd=RUNNER, check=True)
        wanted = max(100, int(SLOW.get(name, MILLION) * share))
        options = {
            "run": "^$",
            "fuzz": f"^{name}$",
            "fuzztime": f"{wanted}x",
            "fuzzminimizetime": "10x",
            "parallel": "1",
        }
        options["fuzzcachedir"] = str(GROWN / "go" / package)
        command = [str(programs[package]), *(f"-test.{option}={value}" for option, value in options.items())]
        yield Job(f"runner: {package}.{name}", command, wanted, directory)


def python_jobs(share: float) -> Iterator[Job]:
    """Each decoder of the driver, and the conversations."""
    guided = importlib.util.find_spec("atheris") is not None
    if not guided:
        print(f"atheris has no wheel for {sys.platform}, Python {sys.version.split()[0]}: decoders are fuzzed unguided")
    for name in DECODERS:
        wanted = max(100, int(SLOW.get(name, MILLION) * share))
        way = [sys.executable, "-m", "tests.fuzz.guided" if guided else "tests.fuzz.unguided", name, str(wanted)]
        yield Job(f"driver: {name}", [*way, str(GROWN)] if guided else way, wanted)
    for name, frames in CONVERSATIONS.items():
        wanted = max(1000, int(frames * share))
        how = "runner: hostile driver" if name == "driver" else f"driver: hostile sandbox, {name}"
        yield Job(how, [sys.executable, "-m", "tests.fuzz", name, "--frames", str(wanted)], wanted)


def main() -> int:
    """Run all; the exit code is 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--only", default="", help="a part of the names of the fuzzers to run")
    asked = parser.parse_args()
    GROWN.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in (*python_jobs(asked.share), *go_jobs(asked.share)) if asked.only in job.name]
    jobs.sort(key=lambda job: "hostile" not in job.name)  # the longest first
    console = Console(width=120)
    begun = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = {threads.submit(job.run): job for job in jobs}
        for number, future in enumerate(as_completed(running), 1):
            future.result()
            job = running[future]
            state = "FAILED" if job.failed else "ok"
            at = f"[{number}/{len(jobs)}, {time.monotonic() - begun:.0f} s]"
            console.print(
                f"{at} {job.name}: {state}, {job.inputs:,} inputs in {job.seconds:.0f} s", markup=False, highlight=False
            )
            if job.failed:
                console.print("\n".join(job.said[-60:]), markup=False, highlight=False)
    console.print(summary(jobs))
    crashes = sum(job.failed and not job.hung for job in jobs)
    print(
        f"{sum(job.inputs for job in jobs):,} inputs, {crashes} crashes, {sum(job.hung for job in jobs)} hangs, "
        f"at most {max(job.memory_mb for job in jobs)} MiB, {time.monotonic() - begun:.0f} s"
    )
    return 1 if any(job.failed for job in jobs) else 0


def summary(jobs: list[Job]) -> Table:
    """A row for each fuzzer."""
    table = Table("fuzzer", "inputs", "crashes", "hangs", "peak MiB", "seconds")
    for job in sorted(jobs, key=lambda job: job.name):
        crashed = int(job.failed and not job.hung)
        table.add_row(
            job.name, f"{job.inputs:,}", str(crashed), str(int(job.hung)), str(job.memory_mb), f"{job.seconds:.0f}"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
