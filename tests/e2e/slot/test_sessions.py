"""Sessions of a slot: what they keep, and in which order their calls run."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from hermes_exec import CommandFailed, ConfigError, Limits, SandboxPool, Session, Slot, SlotClosed
from tests.conftest import BackendCase
from tests.support.outside import count_becomes, mark

pytestmark = [pytest.mark.anyio, pytest.mark.loops]


async def test_a_session_keeps_its_state(slot: Slot) -> None:
    async with slot.session(env={"GIVEN": "1"}) as session:
        assert "cwd" in session.keeps
        assert session.cwd == slot.workspace
        await session.run("mkdir d; cd d; X=plain; export Y=out; f() { echo f $1; }; alias a='echo aliased'; umask 077")
        assert session.cwd == f"{slot.workspace}/d"
        text = (await session.run("pwd; echo $X $Y $GIVEN; f 1; a; umask")).stdout
        assert text == f"{slot.workspace}/d\nplain out 1\nf 1\naliased\n0077\n"
        assert (await session.run("Z=1; exit 5")).exit_code == 5
        assert (await session.run("sleep 60", timeout_s=0.2)).timed_out
        assert (await session.run("echo $X$Z")).stdout == "plain1\n"
        process = await session.spawn("pwd; f 2; cd /; X=changed")
        assert b"".join([piece async for piece in process.stdout]) == f"{slot.workspace}/d\nf 2\n".encode()
        assert (await session.run("echo $X; pwd")).stdout == f"plain\n{slot.workspace}/d\n"
        with pytest.raises(ConfigError):
            await session.run(["ls"])  # type: ignore[arg-type]
    with pytest.raises(SlotClosed):
        await session.run("true")


async def test_session_that_is_closed_while_it_opens_is_closed_in_the_runner(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with SandboxPool("local", trace=trace) as pool, pool.slot() as slot:
        for passes in range(8):
            session = slot.session()

            async def peek(session: Session = session) -> None:
                with suppress(SlotClosed):
                    await session.peek("true")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peek)
                for _ in range(passes % 4):
                    await anyio.lowlevel.checkpoint()
                await session.aclose()
    methods = Counter(json.loads(line).get("method") for line in trace.read_text().splitlines())
    assert methods["session.open"] == methods["session.close"] > 0


async def test_peek_runs_beside_the_session_from_its_last_state(slot: Slot) -> None:
    session = slot.session(env={"GIVEN": "1"})
    assert (await session.peek("echo $GIVEN; X=peeked; cd /")).stdout == "1\n"
    await session.run("cd /usr; X=1; f() { echo f $X $PWD; }; mkfifo ~/gate")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run, "X=2; cd /; cat ~/gate")
        results = [await session.peek("f; X=3; cd /tmp") for _ in range(3)]
        opening = await session.peek("f; echo go > ~/gate", cwd="lib", env={"X": "4"})
        assert [result.stdout for result in results] == ["f 1 /usr\n"] * 3
        assert opening.stdout == "f 4 /usr/lib\n"
    assert session.cwd == "/"
    assert (await session.peek("f; pwd >&2; exit 3", merge_stderr=True)).output == "f 2 /\n/\n"
    assert (await session.run("f")).stdout == "f 2 /\n"
    timed = await session.peek("echo before; sleep 60", timeout_s=0.3)
    assert (timed.timed_out, timed.stdout) == (True, "before\n")
    with pytest.raises(CommandFailed):
        await session.peek("exit 3", check=True)
    with pytest.raises(ConfigError):
        await session.peek(["ls"])  # type: ignore[arg-type]
    await session.aclose()
    with pytest.raises(SlotClosed):
        await session.peek("true")


async def test_peek_and_first_command_open_one_session(slot: Slot) -> None:
    session = slot.session()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run, "X=1")
        tasks.start_soon(session.peek, "true")
    assert (await session.run("echo $X")).stdout == "1\n"


async def test_peek_leaves_a_removed_directory_to_the_session(slot: Slot) -> None:
    session = slot.session()
    await session.run("mkdir gone; cd gone; rmdir ../gone")
    with pytest.raises(FileNotFoundError, match="gone"):
        await session.peek("touch ran")
    assert (await session.peek("echo elsewhere", cwd="/")).stdout == "elsewhere\n"
    with pytest.raises(FileNotFoundError, match="gone"):
        await session.run("touch ran")
    assert (await session.peek("pwd; ls")).stdout == f"{slot.workdir}\n"


async def test_a_session_says_what_it_keeps_before_its_first_command(slot: Slot) -> None:
    session = slot.session()
    assert session.shell == "bash"
    assert session.keeps == ("cwd", "exports", "variables", "arrays", "functions", "aliases", "options", "umask")


async def test_a_state_that_was_not_kept_is_told(slot: Slot) -> None:
    session = slot.session()
    kept = await session.run("X=1; cd /usr; exec >&- 2>&-")
    assert kept.state_lost is None
    killed = await session.run("X=2; kill -9 $$")
    assert killed.state_lost is not None
    assert "signal 9" in killed.state_lost
    large = await session.run("X=$(seq 3000000)")
    assert large.state_lost is not None
    assert "16 MiB" in large.state_lost
    assert (await session.run("echo $X $PWD")).stdout == "1 /usr\n"
    assert (await slot.run("kill -9 $$")).state_lost is None


@pytest.mark.parametrize("number", [16, 20, 62])
async def test_a_session_of_few_open_files_keeps_its_state(backend: BackendCase, number: int) -> None:
    async with (
        SandboxPool(backend.backend, slot_limits=Limits(open_files=number), **backend.options) as pool,
        pool.slot() as slot,
    ):
        session = slot.session()
        assert (await session.run("X=1; cd /")).state_lost is None
        assert (await session.run("echo $X $PWD")).stdout == "1 /\n"


async def test_a_session_goes_on_when_its_channel_was_removed(backend: BackendCase) -> None:
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        session = slot.session()
        await session.run("X=1")
        removed = await session.run('X=2; rm -rf "${__hx_w%/*}" 2>&-; :')
        said = "1" if removed.state_lost else "2"
        assert (await session.run("echo $X; Y=$X")).stdout == f"{said}\n"
        assert (await session.run("X=3")).state_lost is None
        assert (await session.run("echo $X $Y")).stdout == f"3 {said}\n"
        assert (await slot.session().run("echo other")).state_lost is None


async def test_a_session_of_too_few_open_files_is_refused(backend: BackendCase) -> None:
    async with (
        SandboxPool(backend.backend, slot_limits=Limits(open_files=15), **backend.options) as pool,
        pool.slot() as slot,
    ):
        with pytest.raises(ConfigError, match="at least 16 open files"):
            await slot.session().run("true")
        assert (await slot.run("echo fine")).stdout == "fine\n"


async def test_a_session_whose_directory_is_gone_runs_nothing_elsewhere(slot: Slot) -> None:
    await slot.files.write_text("precious", "x")
    session = slot.session()
    await session.run("mkdir build; cd build; rmdir ../build")
    gone = session.cwd
    with pytest.raises(FileNotFoundError, match="nothing ran") as caught:
        await session.run("rm -rf -- *")
    assert caught.value.filename == gone
    assert session.cwd == slot.workspace
    assert (await session.run("ls")).stdout == "precious\n"


async def test_a_session_that_is_to_begin_in_no_directory_runs_nothing(slot: Slot) -> None:
    session = slot.session(cwd="missing")
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="missing"):
            await session.run("touch ran")
    await slot.run("mkdir missing")
    assert (await session.run("pwd; ls ..")).stdout == f"{slot.workspace}/missing\nmissing\n"


async def test_calls_of_a_session_run_in_order(slot: Slot) -> None:
    session = slot.session()
    await session.open()
    order: list[int] = []

    async def call(number: int) -> None:
        await session.run(f"sleep 0.0{5 - number}; echo {number} >> order")
        order.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(call, number)
            await anyio.wait_all_tasks_blocked()
    assert order == list(range(5))
    assert await slot.files.read_text("order") == "0\n1\n2\n3\n4\n"


async def test_a_cancelled_call_leaves_the_session_to_the_next(slot: Slot) -> None:
    session = slot.session()
    await session.run("X=kept")
    word = mark()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run, f"sleep {word}")
        await count_becomes(word, 1)
        with anyio.move_on_after(0.05):
            await session.run("echo never > never")
        tasks.cancel_scope.cancel()
    assert (await session.run("echo $X; ls")).stdout == "kept\n"
