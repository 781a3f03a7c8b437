"""All processes report their slots at the same time, and a stuck process does not delay the answer."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from hermes_exec.cli.observe import answers, client
from hermes_exec.errors import ExecError
from hermes_exec.pool.observe import SUFFIX
from hermes_exec.pool.private_directory import pool_directory

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A name of a Unix socket has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="v") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        pool_directory().mkdir(mode=0o700)
        yield pool_directory()


async def test_all_are_asked_at_once(place: Path) -> None:
    asked, all_asked = 0, anyio.Event()

    async def answer(stream: SocketStream) -> None:
        nonlocal asked
        async with stream:
            try:
                await stream.receive()
            except anyio.EndOfStream:
                return  # only whether somebody is there
            asked += 1
            if asked == 3:
                all_asked.set()
            await all_asked.wait()
            await stream.send(json.dumps({"slots": [{"id": "s"}]}).encode() + b"\n")

    async with AsyncExitStack() as open_ones, anyio.create_task_group() as tasks:
        for name in ("a", "b", "c"):
            listener = await open_ones.enter_async_context(await anyio.create_unix_listener(place / f"{name}{SUFFIX}"))
            tasks.start_soon(listener.serve, answer)
        found = await client.list_slots()
        tasks.cancel_scope.cancel()
    assert [path.name for path, _ in found] == [f"{name}{SUFFIX}" for name in ("a", "b", "c")]


async def test_one_that_takes_no_connection_is_left_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.1)
    path = str(place / f"stuck{SUFFIX}")
    with ExitStack() as stack:
        stuck = stack.enter_context(socket.socket(socket.AF_UNIX))
        stuck.bind(path)
        stuck.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(path)
        with anyio.fail_after(60):
            assert await client.list_slots() == []


HONEST = b'{"slots": [{"id": "a-s0", "sandbox": "a", "more": 1}], "more": 2}\n'
BAD = {
    "number": b'{"slots": 5}\n',
    "missing": b"{}\n",
    "list": b"[]\n",
    "text": b'{"slots": "abc"}\n',
    "slot_number": b'{"slots": [5]}\n',
    "no_id": b'{"slots": [{"sandbox": "a"}]}\n',
    "id_number": b'{"slots": [{"id": 5}]}\n',
    "many": b'{"slots": [' + b'{"id":"a"},' * 20_000 + b'{"id":"a"}]}\n',
    "brackets": b"[" * 100_000 + b"\n",
    "objects": b'{"slots":' * 50_000 + b"\n",
    "digits": b'{"slots": ' + b"9" * 100_000 + b"}\n",
    "not_unicode": b'{"slots": "\xff"}\n',
    "no_json": b"\x1b[2J\x1b]0;owned\x07\n",
    "refusal": b'{"error": "\\u001b[2J\\u001b]0;owned\\u0007", "kind": "X"}\n',
    "endless": b"x" * (2 << 20),
    "silent": b"",
    "never_ends": b'{"slots": [',
}


async def found_beside(place: Path, bad: bytes) -> list[str]:
    """The slots that are found with an honest pool on each side of a bad one."""

    def answering(answer: bytes) -> Callable[[SocketStream], Awaitable[None]]:
        async def serve(stream: SocketStream) -> None:
            async with stream:
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    await stream.receive()
                    if answer:
                        await stream.send(answer)
                    await stream.receive()  # until it hangs up

        return serve

    async with AsyncExitStack() as open_ones, anyio.create_task_group() as tasks:
        for name, answer in (("a", HONEST), ("b", bad), ("c", HONEST)):
            listener = await open_ones.enter_async_context(await anyio.create_unix_listener(place / f"{name}{SUFFIX}"))
            tasks.start_soon(listener.serve, answering(answer))
        found = await client.list_slots()
        tasks.cancel_scope.cancel()
    return [path.stem for path, _ in found]


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_pool_that_answers_wrongly_is_named_and_the_others_are_shown(
    place: Path, bad: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if bad in (BAD["silent"], BAD["never_ends"]):
        monkeypatch.setattr(client, "ANSWER_S", 2.0)
    assert await found_beside(place, bad) == ["a", "c"]
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert f"b{SUFFIX} is left out: " in said
    assert "\x1b" not in said


async def test_first_of_equal_names_and_unknown_entries_count(place: Path) -> None:
    assert await found_beside(place, b'{"slots": [], "slots": [{"id": "\\udcff"}]}\n') == ["a", "b", "c"]


async def test_links_and_further_sockets_are_not_asked(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_POOLS", 2)
    os.symlink(place / "target", place / f"link{SUFFIX}")
    with ExitStack() as stack:
        for name in ("target", f"a{SUFFIX}", f"b{SUFFIX}"):
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(place / name))
        assert [path.stem for path in client.list_sockets()] == ["a", "b"]
        assert capsys.readouterr().err == ""
        stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(place / f"c{SUFFIX}"))
        assert len(list(client.list_sockets())) == 2
        assert "the others are left out" in capsys.readouterr().err


PROCESS = {"pid": 5, "argv": ["sh", "\udcff"], "started_at": 1.5, "rss_bytes": 1, "request_id": None, "state": "S"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": "5"}, {"pid": -1}, {"pid": 1 << 80}, {"pid": True}, {"argv": "sh"}, {"argv": [5]}, {"rss_bytes": 0.5},
        {"started_at": 1e300}, {"started_at": float("nan")}, {"state": None}, {"state": ...},
    ],
)  # fmt: skip
async def test_processes_of_a_wrong_form_are_refused(wrong: dict[str, object]) -> None:
    given = {name: value for name, value in {**PROCESS, **wrong}.items() if value is not ...}
    assert answers.Processes.model_validate({"processes": [PROCESS]}).processes[0].pid == 5
    with pytest.raises(ExecError, match="sent an invalid answer"):
        answers.read_answer(json.dumps({"processes": [given]}).encode(), answers.Processes)


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"event": 5}, {"event": "output", "data": 5}, {"event": "output", "data": "a"},
        {"event": "output", "id": []},
        {"event": "started", "command": 5}, {"event": "started", "command": {"b64": "a"}},
        {"event": "ended", "exit_code": "0"},
        {"event": "dropped", "bytes": 1 << 70},
    ],
)  # fmt: skip
async def test_events_of_a_wrong_form_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ExecError, match="sent an invalid answer"):
        answers.read_answer(json.dumps(wrong).encode(), answers.ViewEvent)
