"""Drivers that are killed at random moments of a load: what goes on without them, and what they leave."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from docker import DockerClient
from docker.errors import NotFound

from hermes_exec import SandboxPool
from hermes_exec.backends.base import SandboxInfo
from tests.chaos.containers import place
from tests.chaos.observations import Seen
from tests.chaos.outside import NOTHING, containers_of
from tests.e2e.backends.sandboxes import sandboxes_of
from tests.engines import options_of
from tests.support.outside import mark
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
logger = logging.getLogger(__name__)
LEASE_S = 5.0
LONGEST_S = 90.0
"""A test waits so long for what is to happen within the lease."""


def living(word: str) -> list[int]:
    """Processes that have a word in their arguments or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def kill_at(seed: int, options: Mapping[str, Any], word: str, scratch: str) -> float:
    """Kill a load at a random moment, from its first launch to the middle of its work, and wait for the end of all
    that it started; in how many seconds that came.
    """
    draw = random.Random(seed)
    things, pause_s = round(draw.expovariate(1 / 150)) if draw.random() < 0.8 else 0, draw.uniform(0, 0.5)
    argv = [sys.executable, "-m", "tests.chaos.load", json.dumps(options)]
    env = {**os.environ, "TMPDIR": scratch}
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(1 + things):
            assert process.stdout.readline(), "the load ended by itself"
        time.sleep(pause_s)
        before = len(living(word))
        process.kill()
        began = time.monotonic()
        process.wait()
        while left := living(word):
            assert time.monotonic() - began < LONGEST_S, left
            time.sleep(0.05)
        took_s = time.monotonic() - began
    logger.info("killed after %d things and %.2f s: %d processes, ended in %.2f s", things, pause_s, before, took_s)
    return took_s


async def next_pool(options: Mapping[str, Any], scratch: str) -> None:
    """A pool of another driver begins and ends, with the same temporary directory."""
    argv = [sys.executable, "-m", "tests.chaos.killed", json.dumps({**options, "run_id": "the-next"})]
    env = {**os.environ, "TMPDIR": scratch}
    await to_thread.run_sync(lambda: subprocess.run(argv, cwd=ROOT, env=env, check=True))


async def local(seeds: range) -> Seen:
    """On the local backend."""
    word = f"chaos-{mark()}"
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / word
        options = {"backend": "local", "base_dir": str(base), "env": {"CHAOS": word}, "lease_s": LEASE_S}
        ends = [await to_thread.run_sync(kill_at, seed, options, word, scratch) for seed in seeds]
        await next_pool(options, scratch)
        return verdict(ends, sorted(os.listdir(base)) + [name for name in os.listdir(scratch) if name != word])


async def docker(seeds: range) -> Seen:
    """In containers: they have stopped by themselves before the next pool removes them."""
    word = f"chaos-{mark()}"
    with place() as here, tempfile.TemporaryDirectory() as scratch:
        options = {
            **here.options,
            "env": {"CHAOS": word},
            "lease_s": LEASE_S,
            "slots_per_sandbox": 16,
            "max_sandboxes": 4,
        }
        ends: list[float] = []
        for seed in seeds:
            seconds = await to_thread.run_sync(kill_at, seed, options, word, scratch)
            began = time.monotonic()
            while "running" in (states := containers_of(here.client, here.run_id)).values():
                assert time.monotonic() - began < LONGEST_S, states
                await anyio.sleep(0.05)
            ends.append(seconds + time.monotonic() - began)
        volumes = volumes_of(here.client, here.run_id)
        await next_pool(options, scratch)

        def in_docker() -> list[str]:
            there = {str(each.name) for each in here.client.volumes.list()}
            return [*containers_of(here.client, here.run_id), *sorted(volumes & there)]

        with contextlib.suppress(AssertionError):  # another pool of this host may be removing it just now
            await until(lambda: not in_docker())
        return verdict(ends, in_docker() + os.listdir(scratch))


async def elsewhere(backend: str, seeds: range) -> Seen:
    """On a backend whose sandboxes its engine tells of: they have ended by themselves before the next pool removes
    them.
    """
    word = f"chaos-{mark()}"
    with options_of(backend) as given, tempfile.TemporaryDirectory() as scratch:
        more = {"run_id": word, "env": {"CHAOS": word}, "lease_s": LEASE_S, "slots_per_sandbox": 16}
        options = {"backend": backend, **given, **more, "max_sandboxes": 4}
        ends: list[float] = []
        for seed in seeds:
            seconds = await to_thread.run_sync(kill_at, seed, options, word, scratch)
            began = time.monotonic()
            while going := [sandbox for sandbox in await sandboxes(backend, given, word) if not sandbox.ended]:
                assert time.monotonic() - began < LONGEST_S, going
                await anyio.sleep(0.1)
            ends.append(seconds + time.monotonic() - began)
        await next_pool(options, scratch)
        return verdict(
            ends, [sandbox.sandbox for sandbox in await sandboxes(backend, given, word)] + os.listdir(scratch)
        )


async def sandboxes(backend: str, options: Mapping[str, Any], run_id: str) -> list[SandboxInfo]:
    """The sandboxes of a run."""
    return [sandbox for sandbox in await sandboxes_of(backend, options) if sandbox.labels.run_id == run_id]


def volumes_of(client: DockerClient, run_id: str) -> set[str]:
    """The anonymous volumes of the containers of a run."""
    found = set()
    for name in containers_of(client, run_id):
        with contextlib.suppress(NotFound):  # its driver is at work, and may have ended it since
            facts = client.api.inspect_container(name)
            found |= {mount["Name"] for mount in facts["Mounts"] if mount["Type"] == "volume"}
    return found


def verdict(ends: list[float], left: list[str]) -> Seen:
    """The row: what runs ends by itself, what lies there goes with the next pool."""
    # The directory of a user's pools stays. A bare name is Python's own trial of the temporary directory, broken off.
    what = [name for name in left if not name.startswith("hermes-exec.") and not re.fullmatch("[a-z0-9_]{8}", name)]
    return Seen("ended with its driver", "", "ended with its driver", ", ".join(what) or NOTHING, max(ends))


async def one(options: dict[str, Any]) -> None:
    """Run a pool with one slot and one command."""
    async with SandboxPool(**options) as pool, pool.slot() as slot:
        assert (await slot.run("echo here")).stdout == "here\n"


if __name__ == "__main__":
    anyio.run(one, json.loads(sys.argv[1]))
