"""`workdir=`: where the calls of a slot start, and what relative paths mean in every tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from docker import DockerClient

from hermes_exec import ConfigError, SandboxPool, Slot
from hermes_exec.tools import Toolbox
from tests.e2e.backends.test_own_root import derived

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
ROOTS: dict[str, dict[str, Any]] = {
    "own root": {"slots_per_sandbox": 2},
    "whole sandbox": {},
}


async def everything_starts_in(slot: Slot, directory: str) -> None:
    assert slot.workdir == directory
    assert (await slot.run("pwd")).stdout == f"{directory}\n"
    assert (await slot.run(["/bin/pwd"])).stdout == f"{directory}\n"
    process = await slot.spawn("pwd > spawned")
    assert (await process.wait(30)).exit_code == 0
    assert await slot.files.read_text("spawned") == f"{directory}\n"
    session = slot.session()
    assert session.cwd == directory
    assert (await session.run("pwd; mkdir -p sub; cd sub")).stdout == f"{directory}\n"
    await slot.files.write_text("sub/a.txt", "found\n")
    assert (await slot.run("cat a.txt", cwd="sub")).stdout == "found\n"
    assert (await slot.files.stat(f"{directory}/sub/a.txt")).size == 6
    assert [match.path for match in (await slot.files.search("found")).matches] == ["sub/a.txt"]
    assert await slot.files.glob("**/*.txt") == ["sub/a.txt"]
    tools = Toolbox(slot)
    assert "found" in (await tools.call("read_file", {"path": "sub/a.txt"})).content
    assert directory in (await tools.call("terminal", {"command": "pwd"})).content
    await tools.call("write_file", {"path": "b.txt", "content": "there\n"})
    assert await slot.files.read_text(f"{directory}/b.txt") == "there\n"


@pytest.mark.parametrize("root", ROOTS)
async def test_everything_starts_there(docker_image: Image, root: str) -> None:
    """A directory that is missing is made, as by `docker run -w`."""
    options: dict[str, Any] = {"image": docker_image("debian"), "max_sandboxes": 1, **ROOTS[root]}
    async with SandboxPool("docker", workdir="/srv/app/deep", files={"put": b"x"}, **options) as pool:
        async with pool.slot() as slot:
            assert await slot.files.exists("/srv/app/deep/put")
            await everything_starts_in(slot, "/srv/app/deep")
            await slot.reset()
            assert (slot.workdir, (await slot.run("ls")).stdout) == ("/srv/app/deep", "put\n")
        async with pool.slot(workdir="/opt") as slot:
            await everything_starts_in(slot, "/opt")
        async with pool.slot() as slot:
            assert (await slot.run("pwd; ls")).stdout == "/srv/app/deep\nput\n"


@pytest.mark.parametrize("root", ROOTS)
async def test_the_workdir_of_the_image(docker_image: Image, engine: DockerClient, root: str) -> None:
    options: dict[str, Any] = {"max_sandboxes": 1, "workdir": "image", **ROOTS[root]}
    with derived(engine, docker_image("debian"), "WORKDIR /project") as image:
        async with SandboxPool("docker", image=image, **options) as pool, pool.slot() as slot:
            await everything_starts_in(slot, "/project")
    async with SandboxPool("docker", image=docker_image("debian"), **options) as pool, pool.slot() as slot:
        assert (slot.workdir, (await slot.run("pwd")).stdout) == ("/", "/\n")


async def test_one_that_is_removed_is_made_again(docker_image: Image) -> None:
    """As models do: `rm -rf /app`, and the next command is to bring it back."""
    options: dict[str, Any] = {"workdir": "/app", **ROOTS["own root"]}
    async with SandboxPool("docker", image=docker_image("debian"), **options) as pool, pool.slot() as slot:
        session = slot.session()
        for run in (slot.run, session.run, slot.run):
            await run("touch left; rm -rf /app", check=True)
            assert (await run("pwd; ls")).stdout == "/app\n"
        await slot.run("rm -rf /app; touch /app", check=True)
        with pytest.raises(NotADirectoryError):
            await slot.run("true")
        await slot.run("rm /app", cwd="/", check=True)
        assert (await (await slot.spawn("pwd > where")).wait(30)).exit_code == 0


async def test_a_profile_has_its_own(docker_image: Image) -> None:
    profiles = {"app": {"workdir": "/srv"}}
    async with SandboxPool("docker", image=docker_image("debian"), profiles=profiles, max_sandboxes=1) as pool:
        async with pool.slot("app") as slot:
            assert (await slot.run("pwd")).stdout == "/srv\n"
        async with pool.slot() as slot:
            assert (slot.workdir, (await slot.run("pwd")).stdout) == (slot.workspace, "/workspace\n")


async def test_where_it_cannot_be_had(docker_image: Image) -> None:
    for bad in ("app", "", "Image", "/a\0b"):
        with pytest.raises(ConfigError, match="workdir"):
            SandboxPool("local", workdir=bad)
    with pytest.raises(ConfigError, match="needs an image"):
        SandboxPool("local", workdir="image")
    async with SandboxPool("docker", image=docker_image("debian"), max_sandboxes=1) as pool:
        for worse in ("app", 3):
            with pytest.raises(ConfigError, match="workdir"):
                await pool.acquire(workdir=worse)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="/etc/passwd"):
            await pool.acquire(workdir="/etc/passwd")
        async with pool.slot() as slot:
            assert (await slot.run("true")).ok


async def test_a_workdir_on_local() -> None:
    async with SandboxPool("local", workdir="/usr") as pool:
        async with pool.slot() as slot:
            assert (slot.workdir, (await slot.run("pwd")).stdout) == ("/usr", "/usr\n")
            assert await slot.files.exists("bin")
        async with pool.slot(workdir="/tmp/made/here") as slot:
            await everything_starts_in(slot, "/tmp/made/here")
