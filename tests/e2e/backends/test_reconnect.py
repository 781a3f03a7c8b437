"""Streams that break under a real runner: a command runs once, and every byte arrives once, in both directions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec.aio.streams import FdStream, to_nowait
from hermes_exec.backends.base import Backend, LaunchSpec
from hermes_exec.backends.docker.backend import DockerBackend
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.local.backend import LocalBackend
from hermes_exec.backends.local.config import LocalConfig
from hermes_exec.backends.owner import own_labels
from hermes_exec.channel import Channel, Data
from hermes_exec.channel.handshake import Identity, shake_hands

pytestmark = [pytest.mark.anyio]
SIZE = 6 << 20


@asynccontextmanager
async def cut_often(backend: Backend, spec: LaunchSpec) -> AsyncIterator[tuple[Channel, list[FdStream]]]:
    """A channel with a slot, and the streams by which something came for it, the newest last."""
    streams: list[FdStream] = []
    sandbox = await backend.launch(spec, own_labels("reconnect"))

    async def opener() -> FdStream:
        stream = await sandbox.open(["attach"])
        assert isinstance(stream, FdStream)
        unwrap = stream.unwrap

        def came(data: bytes) -> bytes:
            if stream not in streams:
                streams.append(stream)
            return unwrap(data)

        stream.unwrap = came  # type: ignore[method-assign]
        return stream

    try:
        channel = await Channel.open(opener, lease_s=30)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run)
            slot: dict[str, Any] = {
                "slot": "s1",
                "level": "exclusive" if spec.exclusive else "auto",
                "floor": "none",
                "network": True,
            }
            slot |= {"limits": {}, "best_effort_limits": True, "env": {}, "private_root": backend.private_root}
            await channel.call("slot.create", {**slot, "readonly_paths": list(backend.readonly_paths)})
            yield channel, streams
            await channel.aclose(shutdown=True)
    finally:
        await sandbox.destroy()
        await backend.aclose()


def command(text: str, **more: Any) -> dict[str, Any]:
    params = {"slot": "s1", "shell": text, "stdin": False, "timeout_s": 60, "output_limit_bytes": 16 << 20}
    return {**params, "merge_stderr": False, "stream": False, **more}


async def survive(channel: Channel, streams: list[FdStream]) -> None:
    """Break the stream again and again while commands run, input goes in and output comes out."""
    digest = hashlib.sha256(bytes(SIZE)).hexdigest().encode()
    done = anyio.Event()

    async def cut() -> None:
        while not done.is_set():
            opened = len(streams)
            with anyio.move_on_after(0.15):
                await done.wait()
            streams[-1].close_now()
            while len(streams) == opened and not done.is_set():  # noqa: ASYNC110 - either of two conditions
                await anyio.sleep(0.001)

    async def up() -> None:
        async with channel.converse("exec.run", command("echo ran >> up; sha256sum", stdin=True)) as conversation:
            for _ in range(SIZE >> 16):
                await conversation.send(bytes(1 << 16))
            await conversation.end()
            result, pieces = await conversation.collect()
        assert result["exit_code"] == 0
        assert b"".join(pieces[1]).split()[0] == digest

    async def down() -> None:
        got = hashlib.sha256()
        params = command(f"echo ran >> down; head -c {SIZE} /dev/zero", stream=True)
        async with channel.converse("exec.run", params, window=1 << 18) as conversation:
            while (item := await conversation.receive()) is not None:
                if isinstance(item, Data) and item.channel == 5:
                    got.update(item.data)
        assert got.hexdigest().encode() == digest

    ran = 0

    async def small() -> None:
        nonlocal ran
        while ran < 30 or len(streams) <= 5:
            i = ran
            ran += 1
            async with channel.converse("exec.run", command(f"echo ran >> small; echo {i}")) as conversation:
                _, pieces = await conversation.collect()
            assert b"".join(pieces[1]) == f"{i}\n".encode()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cut)
        async with anyio.create_task_group() as work:
            work.start_soon(up)
            work.start_soon(down)
            work.start_soon(small)
        done.set()
    async with channel.converse("exec.run", command("wc -l up down small")) as conversation:
        _, pieces = await conversation.collect()
    assert [line.split()[0] for line in b"".join(pieces[1]).splitlines()] == [
        b"1",
        b"1",
        b"%d" % ran,
        b"%d" % (ran + 2),
    ]


@pytest.mark.loops
async def test_local(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o711)
    with anyio.fail_after(120):
        async with cut_often(LocalBackend(LocalConfig(base_dir=str(tmp_path))), LaunchSpec()) as (channel, streams):
            await survive(channel, streams)


async def test_a_first_stream_that_comes_late(tmp_path: Path) -> None:
    """Nomad may say of a stream that it has ended, and hand on what was sent there after another was opened."""
    os.chmod(tmp_path, 0o711)
    with anyio.fail_after(60):
        async with cut_often(LocalBackend(LocalConfig(base_dir=str(tmp_path))), LaunchSpec()) as (channel, streams):
            async with channel.converse("exec.run", command("echo ran >> log; sleep 1; cat log")) as conversation:
                late = to_nowait(await channel._opener())
                await shake_hands(late, Identity(channel._identity.key), lease_s=30)
                await late.aclose()
                _, pieces = await conversation.collect()
            assert b"".join(pieces[1]) == b"ran\n"
            assert channel.state == "open"
            assert len(streams) == 3


@pytest.mark.docker
async def test_docker(docker_image: Callable[[str], str]) -> None:
    spec = LaunchSpec(image=docker_image("debian"), exclusive=True)
    with anyio.fail_after(120):
        async with cut_often(DockerBackend(DockerConfig()), spec) as (channel, streams):
            await survive(channel, streams)
