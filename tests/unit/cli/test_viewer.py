"""All processes are asked at the same time which slots they lend, and a stuck one does not hold up the answer."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from hermes_exec.cli.observe import client
from hermes_exec.pool.observe import SUFFIX
from hermes_exec.pool.private_directory import directory

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A name of a Unix socket has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="v") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        directory().mkdir(mode=0o700)
        yield directory()


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
        found = await client.lent_slots()
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
            assert await client.lent_slots() == []
