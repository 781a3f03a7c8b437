"""hermes-agent's own programs, its command line and batch_runner.py, with a scripted model: calls run in slots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.doors.hermes.conftest import WAYS, configure
from tests.doors.hermes.endpoint import Endpoint, serve

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600)]
COMMAND = "hostname; ls -A /workspace; touch /workspace/mark"
PROGRAM_S = 300
LEASE_S = 60


class Place:
    """The sandboxes of a test that ran while results came. Pools of the test have its note."""

    def __init__(self, note: str) -> None:
        self.label = note
        self.outputs: list[str] = []
        self.sandboxes: set[str] = set()

    def note(self, result: str) -> None:
        """Note the output of a call, and the sandboxes that run now."""
        self.outputs.append(str(json.loads(result)["output"]))
        self.sandboxes |= self.running()

    def running(self) -> set[str]:
        """Return the sandboxes that are there now, also those that have ended."""
        command = ["docker", "ps", "-aq", "--filter", f"label=hermes-exec.note={self.label}"]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    def wait_until_gone(self) -> None:
        """Wait until all are removed."""
        deadline = time.monotonic() + LEASE_S
        while self.running():
            assert time.monotonic() < deadline
            time.sleep(0.2)


def run(home: Path, endpoint: Endpoint, command: list[str], image: str, *, persistent: bool) -> str:
    model = {"default": "scripted", "provider": "custom", "base_url": endpoint.url, "api_key": "none"}
    way = replace(WAYS["docker"], options={**WAYS["docker"].options, "note": home.name})
    configure(home, way, image, model=model, security={"tirith_enabled": False})
    config = home / "config.yaml"
    if persistent:
        config.write_text(config.read_text().replace("container_persistent: false", "container_persistent: true"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("TERMINAL_")}
    env |= {"HERMES_HOME": str(home), "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=home, env=env, timeout=PROGRAM_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_chat_runs_in_slot_and_keeps_files(tmp_path: Path, docker_image: Callable[[str], str]) -> None:
    command = [str(Path(sys.executable).parent / "hermes"), "chat", "-q", "where are you", "-Q"]
    place = Place(tmp_path.name)
    with serve(COMMAND, place.note) as endpoint:
        shown = run(tmp_path, endpoint, command, docker_image("debian"), persistent=True)
        assert "inside this hermes_exec environment" in endpoint.system
        run(tmp_path, endpoint, command, docker_image("debian"), persistent=True)
    first, second = (text.split() for text in place.outputs)
    assert first[0] in place.sandboxes
    assert first[0] in shown
    assert (first[1:], second[1:]) == ([], ["mark"])
    place.wait_until_gone()


def test_batch_rows_run_in_slots_of_their_own(tmp_path: Path, docker_image: Callable[[str], str]) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"row {number}"} for number in range(5)]
    rows.append({"prompt": "row with an image", "image": docker_image("busybox")})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = Place(tmp_path.name)
    with serve(f"{COMMAND}; test -e /etc/debian_version || echo busybox", place.note) as endpoint:
        command = [sys.executable, "-m", "batch_runner", "--dataset_file", "rows.jsonl", "--batch_size", "2"]
        command += ["--run_name", "run", "--distribution", "terminal_only", "--model", "scripted", "--num_workers", "2"]
        command += ["--api_key", "none", "--base_url", endpoint.url]
        run(tmp_path, endpoint, command, docker_image("debian"), persistent=True)
    outputs = [text.split() for text in place.outputs]
    assert len(outputs) == len(rows)
    assert {output[0] for output in outputs} <= place.sandboxes
    assert len({output[0] for output in outputs}) >= 2
    assert sorted(output[1:] for output in outputs) == [*[[]] * 5, ["busybox"]]
    place.wait_until_gone()
