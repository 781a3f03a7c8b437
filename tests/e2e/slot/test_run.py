"""`slot.run` on real sandboxes: every rule of its docstring."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import anyio
import pytest

from hermes_exec import CommandFailed, ConfigError, SandboxPool, Slot
from tests.conftest import BackendCase
from tests.support.outside import count_becomes, mark

pytestmark = pytest.mark.anyio

STANDARD_SIGNALS = (1 << 31) - 1
"""Those above are the C library's own, or are for whoever asks for them."""
UNREACHABLE_DRIVER = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGINT})
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
from hermes_exec import SandboxPool
ASK = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
with SandboxPool("local") as pool, pool.slot() as slot, slot.session() as session:
    print(slot.run(ASK).stdout, session.run(ASK).stdout)
"""


@pytest.mark.loops
async def test_result_of_a_command(backend: BackendCase) -> None:
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        result = await slot.run("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr, result.ok) == (3, "out\n", "err\n", False)
        assert sorted(result.output.splitlines()) == ["err", "out"]
        assert result.request_id is not None
        assert result.duration_s > 0
        assert result.usage.max_rss_bytes > 0
        assert (await slot.run(["printf", "%s|", "a b", "$x", "*"])).stdout == "a b|$x|*|"


async def test_commands_sleep_as_exactly_as_elsewhere(backend: BackendCase) -> None:
    """The runner's own timers are lazy; that is not passed on."""
    async with SandboxPool(backend.backend, **backend.options) as pool, pool.slot() as slot:
        assert (await slot.run("cat /proc/self/timerslack_ns")).stdout == "50000\n"
        async with slot.session() as session:
            assert (await session.run("cat /proc/self/timerslack_ns")).stdout == "50000\n"


def test_signals_that_the_driver_blocks_or_ignores_reach_its_commands() -> None:
    told = subprocess.run(
        [sys.executable, "-c", UNREACHABLE_DRIVER], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    ).stdout
    masks = [int(mask, 16) & STANDARD_SIGNALS for mask in told.split()[1::2]]
    assert masks == [0] * 4


@pytest.mark.loops
async def test_missing_and_unexecutable_programs(slot: Slot) -> None:
    missing = await slot.run(["no-such-program"])
    assert missing.exit_code == 127
    assert "no-such-program" in missing.stderr
    await slot.files.write_text("data", "x")
    assert (await slot.run(["./data"])).exit_code == 126


@pytest.mark.loops
@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_stdin_as_text_bytes_and_stream(slot: Slot, size: int) -> None:
    data = os.urandom(size)
    got = await slot.run("sha256sum; wc -c < /dev/null", stdin=data)
    assert got.ok

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, 65_000):
            yield data[start : start + 65_000]

    again = await slot.run("sha256sum; wc -c < /dev/null", stdin=pieces())
    assert again.stdout == got.stdout
    assert (await slot.run("cat", stdin="größe")).stdout == "größe"


async def test_a_command_that_does_not_read_its_input_does_not_fail(slot: Slot) -> None:
    assert (await slot.run("exit 0", stdin=b"x" * 8_000_000)).ok
    result = await slot.run("head -c 10; yes | head -c 3000000", stdin=b"x" * 8_000_000)
    assert result.ok
    assert result.stdout_total_bytes == 3_000_010


async def test_no_stdin_is_dev_null(slot: Slot) -> None:
    assert (await slot.run("readlink /proc/self/fd/0; cat")).stdout == "/dev/null\n"


async def test_an_error_of_the_input_is_raised_and_ends_the_command(slot: Slot) -> None:
    word = mark()

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        await count_becomes(word, 1)
        raise LookupError("no more")

    with pytest.raises(LookupError):
        await slot.run(["sleep", word], stdin=broken())
    await count_becomes(word, 0)


@pytest.mark.loops
async def test_timeout_ends_the_whole_tree(slot: Slot) -> None:
    word = mark()
    began = time.monotonic()
    result = await slot.run(f"setsid sleep {word} & echo before; trap '' TERM; sleep {word}", timeout_s=3)
    assert time.monotonic() - began < 30
    assert result.timed_out
    assert result.exit_code == 128 + (result.signal or 0)
    assert result.stdout == "before\n"
    assert result.killed is not None
    assert result.killed.left == 0
    assert result.killed.found >= 2
    await count_becomes(word, 0)
    assert (await slot.run("echo still here")).ok


@pytest.mark.loops
async def test_cancelling_ends_the_tree_and_leaves_the_slot_usable(slot: Slot) -> None:
    word = mark()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slot.run, f"setsid sleep {word} & sleep {word}")
        await count_becomes(word, 2)
        began = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - began < 30
    await count_becomes(word, 0)
    assert (await slot.run("echo usable")).stdout == "usable\n"


async def test_what_a_command_left_running_lives_on_until_reset(slot: Slot) -> None:
    word = mark()
    began = time.monotonic()
    assert (await slot.run(f"sleep {word} & echo started")).stdout == "started\n"
    assert time.monotonic() - began < 30
    await count_becomes(word, 1)
    assert word in {arg for process in await slot.processes() for arg in process.argv}
    await slot.reset()
    await count_becomes(word, 0)


@pytest.mark.loops
async def test_output_over_the_limit(slot: Slot) -> None:
    result = await slot.run("seq 1 100000; seq 1 50000 >&2", output_limit_bytes=1000)
    everything = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert result.stdout_total_bytes == len(everything)
    assert len(result.stdout_bytes) == 1000
    assert result.stdout_bytes == everything[:400] + everything[-600:]
    assert result.truncated
    assert result.stdout.count("bytes dropped") == 1
    assert result.spill_path is not None
    assert await slot.files.read_bytes(result.spill_path) == everything
    assert len(result.output_bytes) == 1000


@pytest.mark.parametrize("merge_stderr", [False, True])
@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize(
    ("script", "counts"), [("echo o; echo e >&2", (2, 2)), ("echo o", (2, 0)), ("echo e >&2", (0, 2))]
)
async def test_nothing_or_next_to_it_may_be_kept_of_the_output(
    slot: Slot, script: str, counts: tuple[int, int], limit: int, merge_stderr: bool
) -> None:
    result = await slot.run(script, output_limit_bytes=limit, merge_stderr=merge_stderr)
    assert (result.stdout_total_bytes, result.stderr_total_bytes) == ((sum(counts), 0) if merge_stderr else counts)
    assert len(result.output_bytes) == limit
    assert result.output_dropped_bytes == sum(counts) - limit
    assert (await slot.run("echo fine")).stdout == "fine\n"


async def test_order_of_both_streams(slot: Slot) -> None:
    told = anyio.Semaphore(0)

    async def one_at_a_time() -> AsyncIterator[bytes]:
        for _ in range(6):
            yield b"\n"
            await told.acquire()

    text = "for i in 1 2 3; do read x; echo o$i; read x; echo e$i >&2; done"
    with anyio.fail_after(60):
        result = await slot.run(text, stdin=one_at_a_time(), on_output=lambda *_: told.release())
    assert result.output == "o1\ne1\no2\ne2\no3\ne3\n"
    merged = await slot.run(text.replace("read x;", ""), merge_stderr=True)
    assert merged.stdout == merged.output == "o1\ne1\no2\ne2\no3\ne3\n"
    assert merged.stderr == ""


@pytest.mark.loops
async def test_live_output(slot: Slot) -> None:
    seen: list[tuple[str, bytes]] = []
    one = anyio.Event()

    async def later(stream: str, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append((stream, data))
        one.set()

    async def after_one() -> AsyncIterator[bytes]:
        await one.wait()
        yield b"\n"

    with anyio.fail_after(60):
        result = await slot.run("echo one; read x; echo two >&2", stdin=after_one(), on_output=later)
    assert seen == [("stdout", b"one\n"), ("stderr", b"two\n")]
    assert result.output == "one\ntwo\n"
    pieces: list[bytes] = []
    await slot.run("yes | head -c 5000000", on_output=lambda _, data: pieces.append(data))
    assert sum(map(len, pieces)) == 5_000_000


async def test_a_failing_callback_ends_the_command(slot: Slot) -> None:
    word = mark()

    def fail(stream: str, data: bytes) -> None:
        raise LookupError(stream)

    with pytest.raises(LookupError):
        await slot.run(f"echo x; sleep {word}", on_output=fail)
    await count_becomes(word, 0)


async def test_cwd_and_environment(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVERS_OWN", "secret")
    assert (await slot.run("pwd")).stdout.strip() == slot.workspace
    await slot.files.mkdir("sub dir")
    assert (await slot.run("pwd", cwd="sub dir")).stdout.strip() == f"{slot.workspace}/sub dir"
    assert (await slot.run("pwd", cwd="/usr")).stdout == "/usr\n"
    result = await slot.run("env", env={"GIVEN": "a b\n'c", "PATH": "/usr/bin:/bin"})
    assert "GIVEN=a b\n'c\n" in result.stdout
    assert "DRIVERS_OWN" not in result.stdout
    assert f"HOME={slot.home}\n" in result.stdout
    assert f"TMPDIR={slot.tmp}\n" in result.stdout
    assert "LANG=C.UTF-8\n" in result.stdout
    with pytest.raises(FileNotFoundError, match="absent"):
        await slot.run("echo ran > /tmp/ran", cwd="absent")
    await slot.files.write_text("file", "")
    with pytest.raises(NotADirectoryError):
        await slot.run("true", cwd="file")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (5, {}),
        (b"ls", {}),
        ([], {}),
        ([""], {}),
        (["ls", 5], {}),
        ("a\0b", {}),
        (["a\0b"], {}),
        ("\ud800", {}),
        ("true", {"timeout_s": 0}),
        ("true", {"timeout_s": -1}),
        ("true", {"timeout_s": math.nan}),
        ("true", {"timeout_s": math.inf}),
        ("true", {"timeout_s": "5"}),
        ("true", {"timeout_s": True}),
        ("true", {"cwd": ""}),
        ("true", {"cwd": "a\0b"}),
        ("true", {"env": {"": "x"}}),
        ("true", {"env": {"A=B": "x"}}),
        ("true", {"env": {"A\0": "x"}}),
        ("true", {"env": {"A": "x\0"}}),
        ("true", {"env": {"A": 5}}),
        ("true", {"env": [("A", "x")]}),
        ("true", {"user": ""}),
        ("true", {"stdin": 5}),
        ("true", {"stdin": ["x"]}),
        ("true", {"output_limit_bytes": -1}),
        ("true", {"output_limit_bytes": 1.5}),
        ("true", {"user": "nobody"}),
    ],
)
async def test_what_cannot_be_run_is_told_before_anything_runs(
    slot: Slot, command: object, options: dict[str, object]
) -> None:
    with pytest.raises(ConfigError) as caught:
        await slot.run(command, **options)  # type: ignore[arg-type]
    assert str(caught.value)
    assert not [process for process in await slot.processes() if "true" in process.argv]


async def test_check_raises_with_the_result(slot: Slot) -> None:
    with pytest.raises(CommandFailed, match="exit code 4") as caught:
        await slot.run("echo why >&2; exit 4", check=True)
    assert caught.value.result.stderr == "why\n"


async def test_large_commands(slot: Slot) -> None:
    assert (await slot.run("echo '" + "x" * 5_000_000 + "' | wc -c")).stdout.strip() == "5000001"
    too_long = await slot.run(["echo", "x" * 300_000])
    assert too_long.exit_code == 126
    assert too_long.stderr


async def test_bytes_arguments_are_kept(slot: Slot) -> None:
    assert (await slot.run(["printf", "%s", b"\xff\xfe"])).stdout_bytes == b"\xff\xfe"
    assert (await slot.run("printf %s \udcff")).stdout_bytes == b"\xff"


@pytest.mark.loops
async def test_many_at_once_in_order(slot: Slot) -> None:
    results = await slot.run_many([f"sleep 0.0{9 - number % 9}; echo {number}" for number in range(64)], limit=16)
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(64)]
    with pytest.raises(CommandFailed):
        await slot.run_many(["true", "exit 1"], check=True)
    assert await slot.run_many([]) == []
    told: list[bytes] = []
    results = await slot.run_many(["cat", "tr a-z A-Z"], stdin="in", on_output=lambda _, data: told.append(data))
    assert [result.stdout for result in results] == ["in", "IN"]
    assert sorted(told) == [b"IN", b"in"]
    with pytest.raises(ConfigError, match="list of commands"):
        await slot.run_many("true")


@pytest.mark.timeout(300)
async def test_every_process_has_a_name_also_in_the_middle_of_its_exec(slot: Slot) -> None:
    for _ in range(40):
        await slot.run("sleep 100 & echo started")
        listed = await slot.processes()
        assert len(listed) == 1
        assert "sleep" in " ".join(listed[0].argv) or listed[0].argv == ("[bash]",)
        await slot.kill_all()


async def test_what_a_command_of_a_session_leaves_is_known_to_be_its_own(backend: BackendCase) -> None:
    """The state of the shell must not bring back which request an earlier command was of."""
    async with SandboxPool(backend.backend, **backend.options, max_sandboxes=1) as pool, pool.slot() as slot:
        session = slot.session()
        marks = [(await session.run("export x=1; env | grep ^HERMES_EXEC_REQUEST=")).stdout for _ in range(3)]
        assert len(set(marks)) == 3, marks
        ended = await session.run("(sleep 1000 &) ; sleep 1000", timeout_s=1)
        assert ended.killed is not None
        assert (ended.timed_out, ended.killed.left) == (True, 0)
        assert not [process for process in await slot.processes() if "sleep" in process.argv]
