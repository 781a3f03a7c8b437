"""Commands of a user of the image: home, names and groups are those that the image's files name now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from hermes_exec import SandboxPool, Slot

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
