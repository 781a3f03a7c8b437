"""`hermes-exec batch` beside hermes-agent's batch_runner.py, on Docker: `python -m benchmarks.batch_runners`.

Both work on the same prompts with the same scripted endpoint, take turns, and have the same number of workers. Each
prompt has its image, so that both runners isolate it. Each runner has an environment with its requirements and nothing
else, as users have. Processor time is the one of the runner and its children.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.doors.hermes.endpoint import Endpoint, Handler
from tests.support.doors import ROOT, Door, prepare

RUN_S = 1800.0
OURS = Door("batch", None, ("3.12", "3.11", "3.13"), (), ("docker", "batch"), tools=())


class CallsEndpoint(Endpoint):
    """Answers each conversation with calls of `terminal`, one after another, and then with a text."""

    def __init__(self, calls: int) -> None:
        super().__init__("", lambda _: None, KeepAliveHandler)
        self.calls = calls

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the message for a request."""
        done = sum(message["role"] == "tool" for message in request["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "done", "reasoning_content": "hm"}
        if request.get("tools") and done < self.calls:
            function = {"name": "terminal", "arguments": json.dumps({"command": f"echo {done}"})}
            call = {"id": f"call_{done}", "type": "function", "index": 0, "function": function}
            message |= {"content": "", "tool_calls": [call]}
        return message


class KeepAliveHandler(Handler):
    """A handler whose connections stay open for the next request, and which sends each part of an answer at once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True


@contextmanager
def serving(calls: int) -> Iterator[str]:
    """Serve the endpoint in a process of its own, and yield its URL."""
    command = [sys.executable, "-m", "benchmarks.batch_runners", "--serve", str(calls)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
    finally:
        server.terminate()
        server.wait()


def measure(command: Sequence[str], directory: Path, env: dict[str, str]) -> tuple[float, float]:
    """Run a command, and return its seconds and its processor seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=directory,
        env=env,
        timeout=RUN_S,
        check=False,
    )
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_ours(directory: Path, url: str, workers: int, image: str) -> tuple[float, float]:
    """Measure `hermes-exec batch run`."""
    out = directory / "ours"
    environment = prepare(OURS)
    command = [str(environment.python), "-m", "hermes_exec.cli.main", "batch", "run", str(directory / "rows.jsonl")]
    command += ["--out", str(out), "--model", "scripted", "--base-url", url, "--workers", str(workers)]
    command += ["--backend", "docker", "--image", image, "--overwrite", "--json"]
    # As installed: a checkout may not be writable for compiled modules.
    return measure(command, directory, environment.env | {"PYTHONPYCACHEPREFIX": str(directory / "compiled")})


def count_ours(directory: Path) -> list[int]:
    """Return the calls of each record."""
    lines = (directory / "ours" / "trajectories.jsonl").read_text().splitlines()
    return [int(json.loads(line)["tool_calls"]) for line in lines]


def run_theirs(directory: Path, url: str, workers: int, image: str, rounds: int) -> tuple[float, float]:
    """Measure batch_runner.py with its own Docker environment."""
    environment = prepare(Door.read("hermes"))
    home = directory / f"theirs{rounds}"
    home.mkdir()
    terminal = {
        "backend": "docker",
        "docker_image": image,
        "container_persistent": False,
        "docker_persist_across_processes": False,
    }
    model = {"default": "scripted", "provider": "custom", "base_url": url, "api_key": "none"}
    config = {"terminal": terminal, "model": model, "security": {"tirith_enabled": False}}
    (home / "config.yaml").write_text(yaml.safe_dump(config))
    env = {name: value for name, value in environment.env.items() if not name.startswith("TERMINAL_")}
    env |= {"HERMES_HOME": str(home), "OPENAI_API_KEY": "none", "TERMINAL_ENV": "docker"}
    env |= {"TERMINAL_DOCKER_IMAGE": image, "TERMINAL_CONTAINER_PERSISTENT": "false"}
    env |= {f"TERMINAL_CONTAINER_{name}": "0" for name in ("CPU", "MEMORY", "DISK")}
    command = [str(environment.python), "-m", "batch_runner", "--dataset_file", str(directory / "rows.jsonl")]
    command += ["--batch_size", "5", "--run_name", "run", "--distribution", "terminal_only", "--model", "scripted"]
    command += ["--num_workers", str(workers), "--api_key", "none", "--base_url", url, "--max_turns", "30"]
    before = list_their_containers()
    try:
        return measure(command, home, env)
    finally:
        if left := list_their_containers() - before:
            subprocess.run(["docker", "rm", "--force", "--volumes", *left], stdout=subprocess.DEVNULL, check=True)


def list_their_containers() -> set[str]:
    """Return the ids of the containers of hermes-agent, whose batch runner leaves one for each prompt."""
    command = ["docker", "ps", "--all", "--quiet", "--filter", "name=^hermes-[0-9a-f]{8}$"]
    return set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())


def count_theirs(home: Path) -> list[int]:
    """Return the calls of each record."""
    lines = (home / "data" / "run" / "trajectories.jsonl").read_text().splitlines()
    return [int(json.loads(line)["tool_stats"]["terminal"]["count"]) for line in lines]


def compare(prompts: int, calls: int, workers: int, rounds: int) -> dict[str, Any]:
    """Measure both runners in turns, and return the medians and their ratios."""
    build = [sys.executable, "-m", "tests.images.build", "--tag", "debian"]
    image = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout.strip()
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name, serving(calls) as url:
        directory = Path(name)
        rows = [{"prompt": f"prompt {number}", "image": image} for number in range(prompts)]
        (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run_ours(directory, url, workers, image)  # compiles the modules
        for each in range(rounds):
            ours.append(run_ours(directory, url, workers, image))
            assert count_ours(directory) == [calls] * prompts
            theirs.append(run_theirs(directory, url, workers, image, each))
            assert count_theirs(directory / f"theirs{each}") == [calls] * prompts
    our_wall_s, our_processor_s = (statistics.median(values) for values in zip(*ours, strict=True))
    their_wall_s, their_processor_s = (statistics.median(values) for values in zip(*theirs, strict=True))
    return {
        "prompts": prompts,
        "calls": calls,
        "workers": workers,
        "our_wall_s": round(our_wall_s, 2),
        "their_wall_s": round(their_wall_s, 2),
        "wall_ratio": round(our_wall_s / their_wall_s, 3),
        "our_processor_s": round(our_processor_s, 2),
        "their_processor_s": round(their_processor_s, 2),
        "processor_ratio": round(our_processor_s / their_processor_s, 4),
    }


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("prompts", 40), ("calls", 10), ("workers", 4), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        with CallsEndpoint(arguments.serve) as server:
            print(server.server_port, flush=True)
            server.serve_forever()
    print(json.dumps(compare(arguments.prompts, arguments.calls, arguments.workers, arguments.rounds)))


if __name__ == "__main__":
    main()
