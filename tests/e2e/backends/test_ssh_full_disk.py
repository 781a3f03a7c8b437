"""Three hosts, the disk of one is filled by another program in mid-run: the work is done elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from hermes_agent import CommandCheck, Completion, Rollout, RolloutResult, Scoring, ScriptedModel
from hermes_agent.models.scripted import call
from hermes_exec import ErrorCause, SandboxPool
from tests.support.directories import let_others_pass
from tests.support.disks import DISK_BYTES, fill
from tests.support.sshd import Server, server

pytestmark = [pytest.mark.anyio, pytest.mark.ssh]
MOUNT = f'mount -t tmpfs -o size={DISK_BYTES},mode=1777 small-disk "$1" && shift && exec "$@"'
HOSTS, PROMPTS, FILLED_AFTER, TRIES = 3, 24, 4, 4


def within(host: Server) -> tuple[str, ...]:
    """What runs a command with the disks of that host."""
    assert host._process is not None
    return "nsenter", "--target", str(host._process.pid), "--mount"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    let_others_pass(tmp_path)
    made = tmp_path / "disk"
    made.mkdir()
    return made


@pytest.fixture
def hosts(base: Path, ssh_server: Server) -> Iterator[list[Server]]:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if os.geteuid() != 0 or tried.returncode:
        pytest.skip("mount namespaces take root")
    inside = ("unshare", "--mount", "sh", "-c", MOUNT, "sh", str(base))
    with ExitStack() as stack:
        yield [stack.enter_context(server(inside=inside)) for _ in range(HOSTS)]


def options(hosts: list[Server], base: Path, tmp_path: Path) -> dict[str, Any]:
    known = tmp_path / "known_hosts"
    known.write_text("".join(host.known_hosts for host in hosts))
    key = (hosts[0].directory / "authorized_keys").read_text()
    for host in hosts[1:]:
        other = host.directory / "authorized_keys"
        other.write_text(other.read_text() + key)
    named = [host.options()["hosts"] for host in hosts]
    return {**hosts[0].options(), "hosts": named, "known_hosts": str(known), "base_dir": str(base)}


async def work(pool: SandboxPool) -> list[RolloutResult]:
    """One prompt, which runs again after trouble of the infrastructure."""
    results: list[RolloutResult] = []
    while len(results) < TRIES:
        written = call("terminal", {"command": "head -c 1000000 /dev/zero > work; sleep 0.2; cp work copy"})
        steps = [Completion(None, (written,), None), Completion("done", (), None)]
        check = CommandCheck("test $(wc -c < copy) = 1000000")
        rollout = Rollout(messages="Write work.", scoring=Scoring(check=check))
        results.append(await rollout.run(pool, ScriptedModel(steps)))
        if results[-1].cause is not ErrorCause.INFRA:
            break
    return results


@pytest.mark.whole
async def test_prompts_run_elsewhere_while_a_disk_is_full(hosts: list[Server], base: Path, tmp_path: Path) -> None:
    results: list[list[RolloutResult]] = []
    pool = SandboxPool("ssh", **options(hosts, base, tmp_path), slots_per_sandbox=2, max_sandboxes=HOSTS)
    async with pool:
        room = anyio.CapacityLimiter(2 * HOSTS)

        async def one() -> None:
            async with room:
                results.append(await work(pool))
            if len(results) == FILLED_AFTER:
                await anyio.to_thread.run_sync(fill, base, *within(hosts[0]))

        async with anyio.create_task_group() as tasks:
            for _ in range(PROMPTS):
                tasks.start_soon(one)
    last = [tries[-1] for tries in results]
    assert len(last) == PROMPTS
    assert [result.solved for result in last] == [True] * PROMPTS, last
    failed = [result for tries in results for result in tries[:-1]]
    assert {result.cause for result in failed} <= {ErrorCause.INFRA}
    assert not [result for result in failed if result.trainable]
    assert len(failed) <= 2 * 2, failed  # who was at work there, and at most once more
