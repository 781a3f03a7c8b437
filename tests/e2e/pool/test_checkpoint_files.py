"""Checkpoints saved into files and loaded again, in the same pool and in others."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from hermes_exec import ConfigError, SandboxPool, Slot, SlotClosed
from hermes_exec.archives.checkpoint_file import CheckpointReader, CheckpointWriter
from tests.e2e.pool.test_checkpoint_transfer import CHANGE, ROOT, output
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio]
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]


@pytest.fixture
def pool_of(own_root_pool: Factory) -> Factory:
    return partial(own_root_pool, max_sandboxes=1, slots_per_sandbox=2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    at = tmp_path / "small"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(at)], check=True)
    yield at
    subprocess.run(["umount", str(at)], check=True)


def leaving_archive() -> bytes:
    """Return an archive with an entry outside of its directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind in (("./", tarfile.DIRTYPE), ("../../../note", tarfile.REGTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.pax_headers = kind, 0o755, {"atime": "1.5", "mtime": "1.5"}
            archive.addfile(entry)
    return out.getvalue()


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


async def prepare(slot: Slot) -> None:
    session = slot.session()
    await session.run("mkdir deep; cd deep; export KEY=s3cr3t; OTHER=s3cr3t; f() { echo f$KEY; }; umask 027; set -f")
    await output(slot, CHANGE)


async def test_loaded_checkpoint_is_equal(pool_of: Factory, tmp_path: Path) -> None:
    path = tmp_path / "prepared.hxcp"
    async with pool_of(secrets={"TOKEN": "s3cr3t"}, env={"MODE": "s3cr3t"}) as pool, pool.slot() as slot:
        await prepare(slot)
        await slot.checkpoint(processes="end")
        await output(slot, "echo second > second; rm -r d")
        checkpoint = await slot.checkpoint(on_fork="touch /tmp/began")
        await slot.restore(checkpoint)
        await output(slot, "rm /tmp/began; touch -d 2001-01-01 /tmp")
        before = await output(slot, ROOT)
        await checkpoint.save(path)
        (session_id,) = checkpoint.sessions
    assert b"s3cr3t" not in path.read_bytes()
    async with pool_of(secrets={"TOKEN": "new"}) as pool:
        loaded = await pool.load(path)
        assert (loaded.id != checkpoint.id, loaded.workdir, loaded.image) == (
            True,
            checkpoint.workdir,
            checkpoint.image,
        )
        assert loaded.sessions == {session_id: "/workspace/deep"}
        assert "variables of sessions" in loaded.left_out
        async with pool.slots(2, from_=loaded) as forks:
            for fork in forks:
                await output(fork, "rm /tmp/began; touch -d 2001-01-01 /tmp")
                assert (await output(fork, ROOT)).splitlines() == before.splitlines()
                shell = fork.session(like=session_id)
                state = await shell.run("f; pwd; umask; echo $TOKEN $OTHER; case $- in *f*) echo noglob;; esac")
                assert state.stdout == "f\n/workspace/deep\n0027\nnew\nnoglob\n"
            await output(forks[0], "rm second")
            again = tmp_path / "again.hxcp"
            async with await forks[0].checkpoint() as nested:
                await nested.save(again)
            with CheckpointReader(again) as reader:
                assert len(reader.facts.layers) == 3
        await loaded.drop()
        async with pool.slot() as empty:
            assert await output(empty, "ls") == ""
        await until(lambda: pool.stats().checkpoints == 0)
        second = await pool.load(again)
        async with pool.slot(from_=second) as fork:
            assert await output(fork, "ls second 2>&1 | grep -c cannot; cat note") == "1\none\n"
    assert names(tmp_path) == {"prepared.hxcp", "again.hxcp"}


async def test_save_that_fails_leaves_no_file(pool_of: Factory, tmp_path: Path, small_disk: Path) -> None:
    async with pool_of() as pool, pool.slot() as slot:
        await output(slot, "head -c 50000000 /dev/urandom > big")
        checkpoint = await slot.checkpoint()
        with pytest.raises(OSError, match="No space left"):
            await checkpoint.save(small_disk / "x.hxcp")
        assert names(small_disk) == set()
        before = names(tmp_path)
        with anyio.move_on_after(0.05) as scope:
            await checkpoint.save(tmp_path / "x.hxcp")
        assert scope.cancelled_caught
        assert names(tmp_path) == before
        await output(slot, "i=0; while [ $i -lt 600 ]; do mkdir d; cd d; i=$((i + 1)); done")
        async with await slot.checkpoint() as deep:
            with pytest.raises(OSError, match="too long"):
                await deep.save(tmp_path / "x.hxcp")
        assert names(tmp_path) == before
        await checkpoint.drop()
        with pytest.raises(SlotClosed, match="dropped"):
            await checkpoint.save(tmp_path / "x.hxcp")


async def test_files_that_do_not_fit_are_refused(pool_of: Factory, tmp_path: Path) -> None:
    path, hostile = tmp_path / "x.hxcp", tmp_path / "hostile.hxcp"
    async with pool_of() as pool, pool.slot() as slot:
        await output(slot, "echo one > note")
        await (await slot.checkpoint()).save(path)
    data = path.read_bytes()
    with CheckpointReader(path) as reader:
        facts, parts = reader.facts, [(part.name, reader.open(part).read()) for part in reader.parts]
    for case, match in (
        ("entry", "layers/0/0.tar.*note"),
        ("image", "allow_other_image"),
        ("directory", "divides differently"),
    ):
        with CheckpointWriter(hostile) as writer:
            changed = facts
            if case == "image":
                changed = replace(facts, image_id="sha256:other")
            if case == "directory":
                changed = replace(facts, layers=(("/no/such",) * len(facts.layers[0]),))
            writer.write_facts(changed)
            for name, part in parts:
                writer.begin(name)
                writer.write(leaving_archive() if case == "entry" else part)
                writer.end(name)
            writer.commit()
        async with pool_of() as pool:
            with pytest.raises(ConfigError, match=match):
                await pool.load(hostile)
            assert pool.stats().checkpoints == 0
            if case == "image":
                await (await pool.load(hostile, allow_other_image=True)).drop()
    assert path.read_bytes() == data
    hostile.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    async with pool_of() as pool:
        with pytest.raises(ConfigError, match=r"hostile.hxcp is damaged: its entry 'layers/0/\d.tar'"):
            await pool.load(hostile)
        assert pool.stats().sandboxes["ready"] == 0
    async with pool_of(setup="touch /prepared") as pool:
        with pytest.raises(ConfigError, match="setup"):
            await pool.load(path)
    async with SandboxPool("local") as pool:
        with pytest.raises(ConfigError, match=r"needs slots with a root of their own.* use backend 'docker'"):
            await pool.load(path)
        assert pool.stats().sandboxes["ready"] == 0


def test_blocking_forms(pool_of: Factory, tmp_path: Path) -> None:
    with pool_of() as pool, pool.slot() as slot:
        slot.run("echo one > note", check=True)
        slot.checkpoint().save(tmp_path / "x.hxcp")
        with pool.load(tmp_path / "x.hxcp") as loaded, pool.slot(from_=loaded) as fork:
            assert fork.run("cat note").stdout == "one\n"
