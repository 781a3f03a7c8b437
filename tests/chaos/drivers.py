"""Disasters of drivers: stopped, blocked, or with another driver beside it that ends sandboxes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio import to_thread

from tests.chaos.containers import place
from tests.chaos.flow import Flow
from tests.chaos.observations import Seen
from tests.chaos.outside import containers_of, left_in_docker
from tests.support.outside import count_becomes, mark
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 2.0


@contextmanager
def driver(options: Mapping[str, Any], command: str, output: str) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process of its own, whose call is under way; killed at the end if it still lives."""
    argv = [sys.executable, "-m", "tests.chaos.driver", json.dumps(options), command, output]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip(), "the driver did not come to its call"
            yield process
        finally:
            process.kill()


async def stopped_past_its_lease() -> Seen:
    """SIGSTOP until the command has been ended for its driver, then SIGCONT; the seconds are from then."""
    word = mark()
    with place() as here:
        command = f"{here.evidence.snippet('call')}; echo begun; sleep {word}"
        with driver({**here.options, "lease_s": LEASE_S}, command, "begun\n") as process:
            await count_becomes(word, 1)
            process.send_signal(signal.SIGSTOP)
            await count_becomes(word, 0)
            (name,) = containers_of(here.client, here.run_id)
            await to_thread.run_sync(lambda: here.client.containers.get(name).wait())
            continued_at = time.monotonic()
            process.send_signal(signal.SIGCONT)
            said, _ = await to_thread.run_sync(process.communicate)
        seen = Flow(*json.loads(said.splitlines()[-1]))
        assert here.evidence.counts() == {"call": 1}
        left = left_in_docker(here.client, here.run_id)
        return Seen(seen.call, seen.then, seen.pool, left, seen.ended_at - continued_at)


async def blocked() -> Seen:
    """The driver's event loop is blocked for two leases."""

    async def block(_: str) -> None:
        time.sleep(2 * LEASE_S)  # noqa: ASYNC251 - that is the disaster

    with place() as here:
        return await here.flow(block, lease_s=LEASE_S)


async def reap(*which: str) -> str:
    """`hermes-exec reap` of another process: what it ended, as JSON."""
    argv = [sys.executable, "-m", "hermes_exec.cli.main", "reap", "--backend", "docker", "--json", *which]
    done = await to_thread.run_sync(lambda: subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True))
    return done.stdout


async def beside_one_that_reaps_orphans() -> Seen:
    """Another driver is killed; a third one reaps orphans: the dead one's sandbox, and not ours."""
    with place() as dead, place() as here, driver(dead.options, "echo begun; sleep 1000", "begun\n") as process:

        async def happen(ours: str) -> None:
            (theirs,) = containers_of(dead.client, dead.run_id)
            process.kill()
            await to_thread.run_sync(process.wait)
            assert ours not in await reap("--orphans")
            # Another pool of this host may be removing it just now.
            await until(lambda: theirs not in containers_of(dead.client, dead.run_id))

        return await here.flow(happen)


async def beside_one_that_reaps_its_run() -> Seen:
    """Somebody ends the sandboxes of this run, whose driver lives."""
    with place() as here:

        async def happen(ours: str) -> None:
            assert ours in await reap("--run-id", here.run_id)

        return await here.flow(happen)
