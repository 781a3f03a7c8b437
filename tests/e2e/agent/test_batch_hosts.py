"""Batch runs over several hosts, one of which dies in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from hermes_batch import BatchConfig, BatchResult, Record, read_records, run_batch
from tests.e2e.agent.plans import PlanModel, Step
from tests.e2e.agent.test_batch_run import dataset
from tests.support.directories import let_others_pass
from tests.support.remote_hosts import RemoteHost, missing, remote_host
from tests.support.sshd import Server

pytestmark = [pytest.mark.anyio, pytest.mark.ssh]
PROMPTS, WORKERS = 24, 6


@pytest.fixture
def hosts(ssh_server: Server) -> Iterator[list[RemoteHost]]:
    if why := missing():
        pytest.skip(why)
    with ExitStack() as stack:
        made = [stack.enter_context(remote_host(number)) for number in (1, 2, 3)]
        for host in made[1:]:
            keys = host.server.directory / "authorized_keys"
            keys.write_text(keys.read_text() + (made[0].server.directory / "authorized_keys").read_text())
        yield made


@pytest.mark.whole
async def test_prompts_of_a_host_that_dies_succeed_in_the_same_run(hosts: list[RemoteHost], tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    known = tmp_path / "known_hosts"
    known.write_text("".join(host.server.known_hosts for host in hosts))
    options = {
        **hosts[0].server.options(),
        "hosts": [host.server.options()["hosts"] for host in hosts],
        "known_hosts": str(known),
        "connect_timeout_s": 5,
        "lease_s": 6,
        "slots_per_sandbox": 2,
        "max_sandboxes": 3,
    }
    plans: dict[str, list[Step]] = {
        f"p{n}": [["touch a; sleep 1"], ["touch b; sleep 1"], "done"] for n in range(PROMPTS)
    }
    file = dataset(tmp_path, *({"prompt": prompt, "check": "[ -e a ] && [ -e b ]"} for prompt in plans))
    run = BatchConfig(
        dataset=file,
        out=tmp_path / "out",
        model=PlanModel(plans),
        backend="ssh",
        workers=WORKERS,
        backend_options=options,
    )
    dead = anyio.Event()

    async def die() -> None:
        await dead.wait()
        await to_thread.run_sync(hosts[1].cut)

    def on_record(result: BatchResult, record: Record) -> None:
        if result.records == WORKERS:
            dead.set()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(die)
            with anyio.fail_after(300):
                result = await run_batch(run, on_record=on_record)
    finally:
        hosts[1].mend()
    records = list(read_records(run.out))
    assert (result.complete, result.solved, result.unscored) == (True, PROMPTS, 0)
    assert sorted(record["prompt_index"] for record in records) == list(range(PROMPTS))
    again = [record["attempts"] for record in records if record["attempts"] > 1]
    assert 1 <= len(again) <= WORKERS
