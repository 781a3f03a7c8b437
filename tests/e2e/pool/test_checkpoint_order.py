"""Checkpoints in any order: sessions and toolboxes of earlier and later ones, and drops beside other calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from hermes_exec import Checkpoint, ProfileConfig, SandboxPool, SlotClosed, tools

WRITER = """
import ctypes, os, threading

files = [os.open(f"/workspace/{name}", os.O_WRONLY | os.O_CREAT) for name in ("a/count", "b/count")]

def write():
    number = 0
    while True:
        number += 1
        for file in files:
            os.pwrite(file, b"%09d" % number, 0)

threading.Thread(target=write).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""Writes numbers to two files from a second thread, while the first one has ended."""

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture
async def pool(anyio_backend: str, docker_image: Callable[[str], str]) -> AsyncIterator[SandboxPool]:
    image = docker_image("debian")
    async with SandboxPool("docker", image=image, max_sandboxes=1, slots_per_sandbox=3, slot_root="own") as made:
        yield made


async def run_in_terminal(toolbox: tools.Toolbox, command: str) -> str:
    return str((await toolbox.call("terminal", {"command": command})).data["output"]).strip()


async def test_session_continues_after_scopes_without_it(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        before = await slot.checkpoint()
        session = slot.session()
        await session.run("cd /tmp; X=1")
        checkpoint = await slot.checkpoint()
        await slot.restore(before)
        with pytest.raises(SlotClosed):
            await session.run("true")
        await slot.restore(checkpoint)
        assert (await session.run("pwd; echo $X; X=2")).stdout == "/tmp\n1\n"
        await slot.reset()
        with pytest.raises(SlotClosed):
            await session.run("true")
        await slot.restore(before)
        await slot.restore(checkpoint)
        assert (await session.run("echo $X")).stdout == "1\n"
        await session.aclose()
        with pytest.raises(SlotClosed):
            await session.run("true")
        await slot.restore(checkpoint)
        assert (await session.run("echo $X")).stdout == "1\n", "it was open at the checkpoint"


async def test_toolbox_is_saved_as_restored_without_a_call_between(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        toolbox = tools.Toolbox(slot, ["terminal", "file"])
        before = await slot.checkpoint()
        await run_in_terminal(toolbox, "echo text > a; cd /tmp; V=1")
        read = await toolbox.call("read_file", {"path": "/workspace/a"})
        prepared = await slot.checkpoint()
        for checkpoint, expected in ((before, "/workspace"), (prepared, "/tmp\n1")):
            await slot.restore(checkpoint)
            again = await slot.checkpoint()
            async with pool.fork(slot, 1) as (fork,):
                copy = tools.Toolbox(fork, like=toolbox)
                assert await run_in_terminal(copy, "pwd; echo $V") == expected
            await slot.restore(again)
            assert await run_in_terminal(toolbox, "pwd; echo $V") == expected
        await slot.restore(before)
        await slot.run("echo text > a", check=True)
        assert (await toolbox.call("read_file", {"path": "/workspace/a"})).data == read.data, "a new text for the model"


async def test_sessions_of_forks_have_the_secrets_of_the_fork(pool: SandboxPool) -> None:
    parent = ProfileConfig(secrets={"TOKEN": "of the parent", "ONLY": "parent"}, env={"A": "1", "B": "1"})
    child = ProfileConfig(secrets={"TOKEN": "of the child"}, env={"A": "2", "B": "2", "C": "2"})
    show = 'echo "$TOKEN ${ONLY-none} $A $B ${C-none} $PREPARED"'
    async with pool.slot(parent) as slot:
        session, unused = slot.session(), slot.session()
        await session.run("B=changed; PREPARED=yes")
        await unused.open()
        checkpoint = await slot.checkpoint()
        async with pool.slot(child, from_=checkpoint) as fork:
            expected = "of the child none 2 changed 2 yes\n"
            assert (await fork.session(like=session).run(show)).stdout == expected
            assert (await fork.session(like=unused).run(show)).stdout == "of the child none 2 2 2 \n"
            await fork.reset()
            assert (await fork.session(like=session).run(show)).stdout == expected
        assert (await session.run(show)).stdout == "of the parent parent 1 changed none yes\n"


async def test_drop_waits_for_the_end_of_a_restore(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await slot.run("echo prepared > note", check=True)
        for restores in (1, 0):  # of a restore and a drop that begin together, the first one wins
            checkpoint = await slot.checkpoint()
            refused: list[Exception] = []

            async def restore(to: Checkpoint = checkpoint, refused: list[Exception] = refused) -> None:
                try:
                    await slot.restore(to)
                except SlotClosed as error:
                    refused.append(error)

            async with anyio.create_task_group() as tasks:
                for work in (restore, checkpoint.drop) if restores else (checkpoint.drop, restore):
                    tasks.start_soon(work)
            assert len(refused) == 1 - restores
            assert (await slot.run("cat note")).stdout == "prepared\n"
            assert pool.stats().checkpoints == 0
        assert pool.stats().slots_quarantined == 0


async def test_checkpoint_stops_a_process_whose_first_thread_has_ended(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        await slot.run("mkdir a b; for i in $(seq 1500); do echo $i > a/$i; echo $i > b/$i; done", check=True)
        process = await slot.spawn(["python3", "-c", WRITER])
        await slot.run("until [ -s b/count ] && grep -q ') Z' /proc/*/stat; do sleep 0.05; done", check=True)
        async with await slot.checkpoint() as checkpoint, pool.slot(from_=checkpoint) as fork:
            first, second = [int((await fork.run(f"cat {name}/count")).stdout.lstrip("0")) for name in "ab"]
            assert first - second in (0, 1), "the files were copied while the process wrote"
            assert process.exit_code is None
            await slot.run("n=$(cat b/count); until [ $(cat b/count) != $n ]; do :; done", timeout_s=20, check=True)
