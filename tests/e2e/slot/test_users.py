"""Commands and file calls of a user of the image: home, names and groups are those that the image's files name now."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from hermes_exec import ConfigError, SandboxPool, Slot

pytestmark = pytest.mark.anyio
Image = Callable[[str], str]
FACTS = 'echo "$HOME $USER $LOGNAME $(id -u):$(id -g) $(id -G)"'


@pytest.fixture(
    params=[
        pytest.param("docker 1", marks=pytest.mark.docker),
        pytest.param("docker 2", marks=pytest.mark.docker),
        pytest.param("singularity 1", marks=pytest.mark.singularity),
        pytest.param("singularity 2", marks=pytest.mark.singularity),
    ]
)
async def slot(anyio_backend: str, request: pytest.FixtureRequest) -> AsyncIterator[Slot]:
    backend, slots = request.param.split()
    image = request.getfixturevalue(f"{backend}_image")("debian")
    async with SandboxPool(backend, image=image, slots_per_sandbox=int(slots)) as pool, pool.slot() as slot:
        assert slot.isolation.level == ("exclusive" if slots == "1" else "namespaces")
        yield slot


@pytest.mark.parametrize(
    ("user", "facts"),
    [
        (None, "/root root root 0:0 0"),
        ("root", "/root root root 0:0 0"),
        ("daemon", "/usr/sbin daemon daemon 1:1 1"),
        ("1", "/usr/sbin daemon daemon 1:1 1"),
        ("daemon:tty", "/usr/sbin daemon daemon 1:5 5"),
        ("1:7", "/usr/sbin daemon daemon 1:7 7"),
        ("4242", "/ 4242 4242 4242:0 0"),
        ("4242:77", "/ 4242 4242 4242:77 77"),
    ],
)
async def test_user_has_home_names_and_groups_of_the_image(slot: Slot, user: str | None, facts: str) -> None:
    assert (await slot.run(FACTS, user=user)).stdout == f"{facts}\n"


async def test_user_that_was_made_in_the_slot_can_use_its_home(slot: Slot) -> None:
    made = "mkdir /home/inside && chown 700:700 /home/inside && echo 'inside:x:700:700::/home/inside:/bin/sh' >>"
    await slot.run(f"{made} /etc/passwd; echo 'more:x:701:inside' >> /etc/group", check=True)
    assert (await slot.run(FACTS, user="inside")).stdout == "/home/inside inside inside 700:700 700 701\n"
    await slot.run("cd && touch ~/x", user="inside", check=True)
    process = await slot.spawn(["/bin/sh", "-c", FACTS], user="inside", pty=True)
    assert await process.stdout.receive() == b"/home/inside inside inside 700:700 700 701\r\n"
    await slot.run("sed -i 's,/home/inside,/tmp,' /etc/passwd; sed -i /more/d /etc/group", check=True)
    assert (await slot.run(FACTS, user="inside")).stdout == "/tmp inside inside 700:700 700\n"
    await slot.run("sed -i 's,/tmp,,' /etc/passwd", check=True)
    assert (await slot.run("echo $HOME", user="inside")).stdout == "/\n"


async def test_groups_of_the_slots_own_user_are_read_again(slot: Slot) -> None:
    await slot.run("echo 'more:x:701:root' >> /etc/group", check=True)
    assert (await slot.run("id -G", user="root")).stdout == "0 701\n"
    await slot.run("rm /etc/passwd", check=True)
    assert (await slot.run("id -u", user="root")).stdout == "0\n"


async def test_variables_of_the_call_replace_those_of_the_user(slot: Slot) -> None:
    result = await slot.run("echo $HOME $USER", user="daemon", env={"HOME": slot.home})
    assert result.stdout == f"{slot.home} daemon\n"


async def test_groups_of_a_command_all_have_names(slot: Slot) -> None:
    result = await slot.run("groups; id")
    assert (result.stderr, result.stdout) == ("", "root\nuid=0(root) gid=0(root) groups=0(root)\n")


async def test_timeout_ends_processes_without_a_trace_of_their_command(slot: Slot) -> None:
    await slot.run("sleep 1000 & echo $! > older")
    orphan = "env -i setsid sh -c 'sleep 1001 & sleep 1002 &' "
    result = await slot.run(f"{orphan}; sleep 1003", timeout_s=0.5)
    assert result.timed_out
    assert [process.argv for process in await slot.processes()] == [("sleep", "1000")]


@pytest.mark.parametrize(
    ("user", "owner"),
    [(None, (0, 0)), ("root", (0, 0)), ("daemon", (1, 1)), ("daemon:tty", (1, 5)), ("1", (1, 1)), ("4242", (4242, 0))],
)
async def test_files_belong_to_the_user_of_the_call(slot: Slot, user: str | None, owner: tuple[int, int]) -> None:
    async def owner_of(path: str) -> tuple[int, int]:
        facts = await slot.files.stat(path)
        return facts.uid, facts.gid

    await slot.files.write_text("/tmp/made/below/file", "x", user=user)
    assert await owner_of("/tmp/made/below/file") == await owner_of("/tmp/made") == owner
    await slot.files.write_text("/tmp/mine", "x")
    assert await owner_of("/tmp/mine") == (0, 0)


async def test_file_calls_have_the_rights_of_their_user(slot: Slot) -> None:
    await slot.files.write_text("/tmp/secret", "secret", mode=0o640)
    await slot.run("mkdir -m 700 /tmp/closed; touch /tmp/closed/x; chown root:tty /tmp/secret", check=True)
    refused = [
        slot.files.read_text("/tmp/secret", user="daemon"),
        slot.files.write_text("/tmp/secret", "", user="daemon"),
        slot.files.write_text("/tmp/secret", "", append=True, user="daemon"),
        slot.files.list("/tmp/closed", user="daemon"),
        slot.files.stat("/tmp/closed/x", user="daemon"),
        slot.files.mkdir("/tmp/closed/y", user="daemon"),
        slot.files.remove("/tmp/secret", user="daemon"),
        slot.files.remove("/tmp/closed", recursive=True, user="daemon"),
        slot.files.move("/tmp/secret", "/tmp/moved", user="daemon"),
        slot.files.copy("/tmp/secret", "/tmp/copied", user="daemon"),
        slot.files.chmod("/tmp/secret", 0o777, user="daemon"),
        slot.files.save("/tmp/closed", io.BytesIO(), user="daemon"),
        slot.files.restore(io.BytesIO(), "/tmp/closed/z", user="daemon"),
    ]
    for call in refused:
        with pytest.raises(PermissionError):
            await call
    assert await slot.files.read_text("/tmp/secret", user="daemon:tty") == "secret"
    assert (await slot.files.search("secret", "/tmp", user="daemon")).matches == ()
    assert await slot.files.read_text("/tmp/secret", user="root") == "secret"
    for user in ("nobody-here", "", "root:no-such-group"):
        with pytest.raises(ConfigError):
            await slot.files.write_text("/tmp/by-nobody", "x", user=user)
    assert not await slot.files.exists("/tmp/by-nobody")


async def test_every_file_call_works_for_a_user_that_was_made_in_the_slot(slot: Slot, tmp_path: Path) -> None:
    made = "mkdir /home/inside && chown 700:700 /home/inside && chmod 700 /home/inside"
    await slot.run(f"{made} && echo 'inside:x:700:700::/home/inside:/bin/sh' >> /etc/passwd", check=True)
    files, user = slot.files, "inside"
    large, archive = os.urandom(3 << 20), io.BytesIO()
    (tmp_path / "up" / "deep").mkdir(parents=True)
    (tmp_path / "up" / "deep" / "large").write_bytes(large)
    (tmp_path / "up" / "link").symlink_to("deep/large")
    await files.upload(tmp_path / "up", "~/tree", user=user)
    await files.upload(tmp_path / "up" / "deep" / "large", "~/large", user=user)
    await files.mkdir("~/a/b", parents=True, user=user)
    await files.write_text("~/a/text", "one\n", user=user)
    await files.write_text("~/a/text", "two\n", append=True, user=user)
    await files.copy("~/a", "~/copied", recursive=True, user=user)
    await files.move("~/a", "~/moved", user=user)
    await files.chmod("~/moved/text", 0o640, user=user)
    await files.save("~/tree", archive, user=user)
    archive.seek(0)
    await files.restore(archive, "~/restored", user=user)
    for path in ("~/large", "~/tree/link", "~/restored/deep/large"):
        assert await files.read_bytes(path, user=user) == large
    await files.download("~", tmp_path / "down", user=user)
    assert (tmp_path / "down" / "moved" / "text").read_text() == "one\ntwo\n"
    await files.download("~/large", tmp_path / "large", user=user)
    assert (tmp_path / "large").read_bytes() == large
    found = await files.search("two", "~", user=user)
    assert {match.path for match in found.matches} == {"/home/inside/copied/text", "/home/inside/moved/text"}
    assert await files.glob("moved/*", "~", user=user) == ["/home/inside/moved/text", "/home/inside/moved/b"]
    everything = await files.list("~", recursive=True, user=user)
    assert {(entry.uid, entry.gid) for entry in everything} == {(700, 700)}
    assert len(everything) == 15
    await files.remove("~/tree", recursive=True, user=user)
    assert not await files.exists("~/tree", user=user)
    with pytest.raises(FileNotFoundError):
        await files.stat("~")


async def test_calls_of_several_users_run_side_by_side(slot: Slot) -> None:
    async def write(index: int) -> None:
        user = ("root", "daemon", "4242", None)[index % 4]
        for turn in range(20):
            await slot.files.write_text(f"/tmp/of-{index}-{turn}", "x", user=user)

    async with anyio.create_task_group() as tasks:
        for index in range(8):
            tasks.start_soon(write, index)
    owners = {entry.name: entry.uid for entry in await slot.files.list("/tmp") if entry.name.startswith("of-")}
    assert owners == {f"of-{index}-{turn}": (0, 1, 4242, 0)[index % 4] for index in range(8) for turn in range(20)}


@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
async def test_slot_with_its_own_user_refuses_files_of_others(backend: str, request: pytest.FixtureRequest) -> None:
    options = {}
    if backend == "docker":
        image = request.getfixturevalue("docker_image")("debian")
        options = {"image": image, "slots_per_sandbox": 2, "slot_root": "shared"}
    async with SandboxPool(backend, **options) as pool, pool.slot() as slot:
        assert slot.uid != 0
        for user in ("root", "0", "daemon", f"{slot.user}:root", f"{slot.uid}:0"):
            with pytest.raises(ConfigError, match="only if the slot is a whole sandbox or has a root"):
                await slot.files.write_text("refused", "x", user=user)
        for user in (slot.user, str(slot.uid)):
            await slot.files.write_text("~/mine", "x", user=user)
        assert (await slot.files.stat(f"{slot.home}/mine")).uid == slot.uid
        assert not await slot.files.exists("refused")
