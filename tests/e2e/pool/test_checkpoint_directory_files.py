"""Checkpoints of directories that are saved into files and loaded again: on this host, on others, in containers."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import ConfigError, Limits, SandboxPool, Slot
from hermes_exec.archives.checkpoint_file import CheckpointFacts, CheckpointReader, CheckpointWriter, Origin
from tests.conftest import require_engine
from tests.e2e.pool.test_checkpoint_files import names
from tests.e2e.pool.test_checkpoint_transfer import output
from tests.support.ordinary_user import account
from tests.support.sshd import server

pytestmark = pytest.mark.anyio
Image = Callable[[str], str]
Factory = Callable[..., SandboxPool]
CHANGE = (
    "echo one > note; ln note other; chmod 4711 note; mkfifo pipe; truncate -s 1000000 hole; echo data >> hole; "
    "ln -s /nowhere link; touch -d 1960-01-01 old; mkdir shut; echo x > shut/x; chmod 0 shut; "
    "echo home > $HOME/h; echo tmp > $TMPDIR/t; head -c 3000000 /dev/urandom > big"
)
DIRECTORIES = (
    "for d in . $HOME $TMPDIR; do cd $d; find . -printf '%P %y %m %n %T@ %l %b\\n' 2> /dev/null | sort; "
    "find . -type f 2> /dev/null | sort | xargs -r sha256sum 2> /dev/null; find . ! -user $(id -u) 2> /dev/null; done"
)
SLOTS: dict[str, Any] = {"max_sandboxes": 1, "slots_per_sandbox": 2}


@pytest.fixture(
    params=["local", pytest.param("ssh", marks=pytest.mark.ssh), pytest.param("docker", marks=pytest.mark.docker)]
)
def pool_of(request: pytest.FixtureRequest) -> Factory:
    if request.param == "docker":
        image = request.getfixturevalue("docker_image")("debian")
        return partial(SandboxPool, "docker", image=image, slot_root="shared", **SLOTS)
    options: dict[str, Any] = request.getfixturevalue("ssh_server").options() if request.param == "ssh" else {}
    return partial(SandboxPool, request.param, **SLOTS, **options)


async def save(slot: Slot, path: Path) -> None:
    async with await slot.checkpoint(holds="directories") as checkpoint:
        await checkpoint.save(path)


def rewrite(
    path: Path,
    target: Path,
    change: Callable[[CheckpointFacts], CheckpointFacts],
    data: bytes | None,
    directory: str = "workspace",
) -> None:
    """Write another file with changed facts, and with another archive of a directory unless it is None."""
    with CheckpointReader(path) as reader, CheckpointWriter(target) as writer:
        writer.write_facts(change(reader.facts))
        for part in reader.parts:
            writer.begin(part.name)
            replaced = data if part.directory == directory else None
            writer.write(reader.open(part).read() if replaced is None else replaced)
            writer.end(part.name)
        writer.commit()


def archive(*entries: tuple[str, bytes, dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, fields in (("./", tarfile.DIRTYPE, {}), *entries):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.pax_headers = kind, 0o755, {"atime": "1.5", "mtime": "1.5"}
            for field, value in fields.items():
                setattr(entry, field, value)
            tar.addfile(entry)
    return out.getvalue()


async def test_loaded_directories_are_equal(pool_of: Factory, tmp_path: Path) -> None:
    path = tmp_path / "prepared.hxcp"
    async with pool_of(secrets={"TOKEN": "s3cr3t"}, env={"MODE": "s3cr3t"}) as pool, pool.slot() as slot:
        session = slot.session()
        await session.run("mkdir deep; cd deep; export KEY=s3cr3t; f() { echo f$KEY $PWD; }; umask 027")
        await output(slot, CHANGE)
        before = await output(slot, DIRECTORIES)
        checkpoint = await slot.checkpoint(holds="directories")
        await checkpoint.save(path)
        with pytest.raises(ConfigError, match="Make a checkpoint of a slot with a root of its own"):
            await checkpoint.export_oci(tmp_path / "image.tar", base=path)
        (session_id,) = checkpoint.sessions
    assert b"s3cr3t" not in path.read_bytes()
    async with pool_of(secrets={"TOKEN": "new"}) as pool:
        loaded = await pool.load(path)
        assert (loaded.holds, loaded.id != checkpoint.id, loaded.image) == ("directories", True, checkpoint.image)
        assert {*loaded.left_out} == {"variables of sessions", *checkpoint.left_out}
        async with pool.slots(2, from_=loaded) as forks:
            for fork in forks:
                assert (await output(fork, DIRECTORIES)).splitlines() == before.splitlines()
                state = (await fork.session(like=session_id).run("f; umask; echo $TOKEN$KEY")).stdout
                assert state == f"f {fork.workspace}/deep\n0027\nnew\n"
            await output(forks[0], "echo two > second")
            again = tmp_path / "again.hxcp"
            async with await forks[0].checkpoint(holds="directories", on_fork="touch began") as nested:
                await nested.save(again)
            await loaded.drop()
            await output(forks[1], "rm note")
            await forks[1].reset()
            assert await output(forks[1], "cat note; ls second 2>&1 | grep -c cannot") == "one\n1\n"
        second = await pool.load(again)
        async with pool.slot(from_=second) as fork:
            assert await output(fork, "cat second other; ls began") == "two\none\nbegan\n"
    assert names(tmp_path) == {"prepared.hxcp", "again.hxcp"}


@pytest.mark.ssh
async def test_directories_belong_to_the_user_of_another_host(tmp_path: Path) -> None:
    """From slots of root to those of an ordinary user, and back."""
    require_engine("ssh")
    if os.geteuid() != 0:
        pytest.skip("only root adds a user")
    path, again = tmp_path / "x.hxcp", tmp_path / "again.hxcp"
    mark = "import os; os.setxattr('note', 'user.overlay.redirect', b'of the tenant')"
    local = partial(SandboxPool, "local", **SLOTS)
    with account() as user, server(user) as host:
        async with local() as pool, pool.slot() as slot:
            await output(slot, f'echo one > note; python3 -c "{mark}"; chmod 2711 note; echo home > $HOME/h')
            await save(slot, path)
            level = slot.isolation.level
        async with SandboxPool("ssh", **SLOTS, **host.options()) as pool, pool.slot() as slot:
            if slot.isolation.level != level:
                pytest.skip(f"slots of an ordinary user have the level {slot.isolation.level}, and of root {level}")
            await slot.restore(await pool.load(path))
            assert await output(slot, "cat note $HOME/h; stat -c %a note; find . $HOME ! -user $(id -u)") == (
                "one\nhome\n2711\n"
            )
            await output(slot, "echo more > more")
            await save(slot, again)
    async with local() as pool, pool.slot(from_=await pool.load(again)) as fork:
        assert await output(fork, "cat note more; find . $HOME ! -user $(id -u)") == "one\nmore\n"
        show = "import os; print(os.getxattr('note', 'user.overlay.redirect').decode())"
        assert await output(fork, f'python3 -c "{show}"') == "of the tenant\n"


@pytest.mark.ssh
async def test_restore_on_another_host_belongs_to_its_user() -> None:
    require_engine("ssh")
    if os.geteuid() != 0:
        pytest.skip("only root adds a user")
    with account() as user, server() as first, server(user) as second:
        options = first.options(hosts=[first.options()["hosts"], second.options()["hosts"]])
        shutil.copy(first.directory / "authorized_keys", second.directory / "authorized_keys")
        (first.directory / "known_hosts").write_text(first.known_hosts + second.known_hosts)
        async with SandboxPool("ssh", slots_per_sandbox=1, max_sandboxes=2, **options) as pool, pool.slots(2) as slots:
            if slots[0].isolation.level != slots[1].isolation.level:
                pytest.skip("slots of an ordinary user have another level than those of root")
            for slot, other in (slots, reversed(slots)):
                await output(slot, "echo one > note; chmod 2711 note")
                async with await slot.checkpoint(holds="directories") as checkpoint:
                    await other.restore(checkpoint)
                assert await output(other, "cat note; stat -c %a note; find . ! -user $(id -u)") == "one\n2711\n"


async def test_archive_in_the_way_of_a_read_only_path_is_refused(tmp_path: Path) -> None:
    path, hostile, shown = tmp_path / "x.hxcp", tmp_path / "hostile.hxcp", tmp_path / "shown"
    shown.mkdir()
    link = archive((str(tmp_path.relative_to("/tmp").parts[0]), tarfile.SYMTYPE, {"linkname": "/etc"}))
    async with SandboxPool("local", readonly_paths=[str(shown)], **SLOTS) as pool, pool.slot() as slot:
        if slot.tmp != "/tmp":
            pytest.skip("slots of this host see its directories at paths of their own")
        await output(slot, "echo one > note")
        await save(slot, path)
        rewrite(path, hostile, lambda facts: facts, link, "tmp")
        async with await pool.load(hostile) as loaded:
            with pytest.raises(ConfigError, match="in the way of the read-only path"):
                await pool.acquire(from_=loaded)
        assert await output(slot, "cat note") == "one\n"


async def test_hostile_file_of_directories_changes_nothing(pool_of: Factory, tmp_path: Path) -> None:
    path, hostile, outside = tmp_path / "x.hxcp", tmp_path / "hostile.hxcp", tmp_path / "outside"
    outside.mkdir()
    link = ("a", tarfile.SYMTYPE, {"linkname": str(outside)})
    archives = {
        "../../../note": archive(("../../../note", tarfile.REGTYPE, {})),
        "a/note": archive(link, ("a/note", tarfile.REGTYPE, {})),
        "disk": archive(("disk", tarfile.BLKTYPE, {"devmajor": 8})),
        "whiteout": archive(("whiteout", tarfile.CHRTYPE, {})),
        "hard": archive(("hard", tarfile.LNKTYPE, {"linkname": "/etc/passwd"})),
    }
    async with pool_of() as pool, pool.slot() as slot:
        await output(slot, "echo one > note")
        await save(slot, path)
        for name, data in archives.items():
            rewrite(path, hostile, lambda facts: facts, data)
            with pytest.raises(ConfigError, match=rf"layers/0/0\.tar.*{name}"):
                await pool.load(hostile)
        # An entry of another user is none that a slot with a user of its own has made.
        rewrite(path, hostile, lambda facts: facts, archive(("note", tarfile.REGTYPE, {"uid": 4711, "mode": 0o4755})))
        async with await pool.load(hostile) as loaded:
            with pytest.raises(ConfigError, match="note: it belongs to another user"):
                await pool.acquire(from_=loaded)
        origin = Origin("/", {})
        rewrite(
            path, hostile, lambda facts: replace(facts, origin=replace(facts.origin or origin, dir="/x/../y")), None
        )
        with pytest.raises(ConfigError, match=r"hostile.hxcp cannot be used: .*/x/\.\./y"):
            await pool.load(hostile)
        assert await output(slot, "cat note") == "one\n"
        async with await pool.load(path) as loaded, pool.slot(from_=loaded) as fork:
            assert await output(fork, "cat note") == "one\n"
        assert pool.stats().slots_quarantined == 0
    assert names(outside) == set()


@pytest.mark.docker
async def test_file_of_directories_is_refused_before_anything_starts(docker_image: Image, tmp_path: Path) -> None:
    image, path, changed = docker_image("debian"), tmp_path / "x.hxcp", tmp_path / "changed.hxcp"
    local = partial(SandboxPool, "local", **SLOTS)
    async with local() as pool, pool.slot() as slot:
        await save(slot, path)
    docker = partial(SandboxPool, "docker", image=image, max_sandboxes=1)
    for pool_without, match in (
        (docker(slots_per_sandbox=2, slot_root="own"), "slot_root='shared' and slots_per_sandbox=2"),
        (docker(slots_per_sandbox=1), "slot_root='shared' and slots_per_sandbox=2"),
        (docker(slots_per_sandbox=2, slot_root="shared"), "was saved over no image"),
        (local(setup="true"), "other commands of `setup`"),
        (local(slot_limits=Limits(disk_mb=50)), "disk_mb"),
    ):
        async with pool_without as pool:
            with pytest.raises(ConfigError, match=match):
                await pool.load(path)
            assert pool.stats().sandboxes["ready"] == 0
    paths = {"workspace": "/elsewhere", "home": "/home/slot", "tmp": "/tmp", "var-tmp": "/var/tmp"}
    rewrite(path, changed, lambda facts: replace(facts, origin=Origin("/slots/s1", paths)), None)
    async with local() as pool:
        with pytest.raises(ConfigError, match=r"with its workspace at /elsewhere, and slots of .* have it at "):
            await pool.load(changed)
        assert pool.stats().checkpoints == 0
    async with docker(slots_per_sandbox=2, slot_root="shared") as pool:
        with pytest.raises(ConfigError, match="isolation level"):
            await pool.load(path, allow_other_image=True)
