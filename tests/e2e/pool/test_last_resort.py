"""A program that ends without closing its pool ends as it would otherwise, at once, and leaves no sandbox."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from tests.support.outside import alive, mark, marked, runner_pid

ROOT = Path(__file__).resolve().parents[3]
WAYS = {"end": 0, "raise": 1, "exit": 7, "async-end": 0, "async-raise": 1, "async-exit": 7}


def run(how: str, backend: str, image: str, run_id: str, word: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.e2e.pool.unclosed", how, backend, image, run_id, word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done, time.monotonic() - began


@pytest.mark.parametrize("how", WAYS)
def test_no_process_is_left(how: str) -> None:
    word = mark()
    done, took = run(how, "local", "", f"test-{uuid.uuid4().hex[:8]}", word)
    assert done.returncode == WAYS[how], done.stderr
    assert took < 20
    assert done.stderr.count("Traceback") == ("raise" in how)
    deadline = time.monotonic() + 60
    while (marked(word) or alive(runner_pid(done.stdout.strip()))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marked(word) == []
    assert not alive(runner_pid(done.stdout.strip()))


@pytest.mark.docker
@pytest.mark.parametrize("how", WAYS)
def test_no_container_is_left(how: str, docker_image: Callable[[str], str]) -> None:
    run_id, word = f"test-{uuid.uuid4().hex[:8]}", mark()
    done, took = run(how, "docker", docker_image("busybox"), run_id, word)
    assert done.returncode == WAYS[how], done.stderr
    assert took < 20
    assert done.stderr.count("Traceback") == ("raise" in how)
    with contextlib.closing(docker.from_env()) as client:
        assert client.containers.list(all=True, filters={"label": f"hermes-exec.run-id={run_id}"}) == []
    assert len(done.stdout.strip()) == 64
    assert marked(word) == []
