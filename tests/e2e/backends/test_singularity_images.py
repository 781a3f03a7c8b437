"""Images of Apptainer: what is built or converted, once, and what is left of a build that was stopped."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from docker import DockerClient

from hermes_exec import AcquireTimeout, ImageError, LaunchTimeout, PullProgress, SandboxPool
from hermes_exec.backends.singularity.sources import ImageSource, find_image
from tests.e2e.backends import registry
from tests.e2e.backends.registry import Registry
from tests.images import busybox
from tests.images.archive import docker_archive, oci_directory
from tests.support.outside import marked
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.singularity]
Image = Callable[[str], str]
SQUASHFS_PRIMARY = bytes((1, 0, 0, 0, 2, 0, 0, 0))


@pytest.fixture(scope="module")
def layer(singularity_image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an image as a tar archive."""
    singularity_image("busybox")
    directory = tmp_path_factory.mktemp("layer")
    busybox.write_rootfs(directory / "layer.tar", directory)
    return directory / "layer.tar"


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "sandboxes").mkdir()
    return {"base_dir": str(tmp_path / "sandboxes"), "cache_dir": str(tmp_path / "cache")}


async def ran(command: str, **options: Any) -> str:
    async with SandboxPool("singularity", **options) as pool, pool.slot() as slot:
        return (await slot.run(command)).check().stdout


def cached(options: dict[str, Any]) -> list[str]:
    return sorted(name for name in os.listdir(options["cache_dir"]) if not name.endswith(".lock"))


async def test_an_archive_is_built_once_by_its_content(options: dict[str, Any], layer: Path, tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin", "FROM_IMAGE=first"))
    options["image"] = f"docker-archive:{archive}"
    assert await ran("echo $FROM_IMAGE", **options) == "first\n"
    (first,) = cached(options)
    begun = os.stat(Path(options["cache_dir"]) / first).st_mtime_ns
    assert await ran("echo $FROM_IMAGE", **options) == "first\n"
    assert os.stat(Path(options["cache_dir"]) / first).st_mtime_ns == begun
    docker_archive(archive, layer, env=("PATH=/bin", "FROM_IMAGE=second"))
    assert await ran("echo $FROM_IMAGE", **options) == "second\n"
    assert len(cached(options)) == 2


async def test_build_goes_on_after_request_has_given_up(
    options: dict[str, Any], layer: Path, tmp_path: Path, wrap_engine: Callable[[str], str]
) -> None:
    archive = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin",))
    options |= {"image": f"docker-archive:{archive}", "binary": wrap_engine("sleep 3")}
    async with SandboxPool("singularity", **options) as pool:
        for _ in range(2):
            with pytest.raises(AcquireTimeout, match=r"a launch began \d+ s ago: the image .* is being prepared"):
                await pool.acquire(timeout_s=0.7)
        async with pool.slot(timeout_s=60) as slot:
            assert (await slot.run("echo here")).stdout == "here\n"
    assert len(cached(options)) == 1
    assert len((tmp_path / "builds").read_text().splitlines()) == 1


@pytest.fixture
def wrap_engine(tmp_path: Path) -> Callable[[str], str]:
    """Make an engine that runs a script before each build, and writes a line to the file `builds`."""

    def wrap(script: str) -> str:
        engine = tmp_path / "slow-engine"
        before = f'[ "$1" != build ] || {{ echo build >>{tmp_path}/builds; {script}; }}'
        engine.write_text(f'#!/bin/sh\n{before}\nexec {shutil.which("apptainer")} "$@"\n')
        engine.chmod(0o755)
        return str(engine)

    return wrap


async def test_oci_directory_is_built_anew_when_its_content_changes(
    options: dict[str, Any], layer: Path, tmp_path: Path
) -> None:
    options["image"] = f"oci:{oci_directory(tmp_path / 'image', layer, env=('PATH=/bin', 'FROM_IMAGE=first'))}"
    assert await ran("echo $FROM_IMAGE", **options) == "first\n"
    assert await ran("echo $FROM_IMAGE", **options) == "first\n"
    assert len(cached(options)) == 1
    oci_directory(tmp_path / "image", layer, env=("PATH=/bin", "FROM_IMAGE=second"))
    assert await ran("echo $FROM_IMAGE", **options) == "second\n"


async def test_engine_gets_paths_of_the_user_and_slot_does_not(
    options: dict[str, Any], layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, room = tmp_path / "engine", tmp_path / "room"
    engine.write_text(f'#!/bin/sh\nenv >>{tmp_path}/env-$1\nexec {shutil.which("apptainer")} "$@"\n')
    engine.chmod(0o755)
    room.mkdir()
    mine = {"LD_LIBRARY_PATH": f"{tmp_path}/lib", "APPTAINER_TMPDIR": str(room)}
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    archive = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin",))
    printed = await ran("env", image=f"docker-archive:{archive}", binary=str(engine), **options)
    assert str(tmp_path) not in printed
    for call in ("build", "-s"):
        env = dict(line.partition("=")[::2] for line in (tmp_path / f"env-{call}").read_text().splitlines())
        assert env["PATH"].startswith(f"{tmp_path}/bin:")
        assert {name: env[name] for name in mine} == mine


async def test_a_definition_is_built_by_its_text_and_its_files(
    options: dict[str, Any], layer: Path, tmp_path: Path
) -> None:
    archive = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin",))
    (tmp_path / "given").write_text("one")
    definition = tmp_path / "image.def"
    definition.write_text(
        f"Bootstrap: docker-archive\nFrom: {archive}\n\n%files\n    {tmp_path}/given /given\n\n"
        "%environment\n    export TOLD=yes\n"
    )
    options["image"] = str(definition)
    assert await ran("cat /given; echo $TOLD", **options) == "oneyes\n"
    (tmp_path / "given").write_text("other")
    assert await ran("cat /given", **options) == "other"
    assert len(cached(options)) == 2


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("%files\n  {tmp}/gl*.txt /opt/\n", "glob.txt"),
        ('%files\n  "{tmp}/with a space" /opt/\n', "with a space"),
        ("%files\n  beside /opt/\n", "beside"),
        ("%files\n  {tmp}/directory /opt/  # all of it\n", "directory/below"),
        ("Bootstrap: localimage\nFrom: {tmp}/base\n", "base/etc/os-release"),
    ],
)
def test_a_definition_is_known_by_what_it_copies(
    text: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    definition, file = tmp_path / "image.def", tmp_path / changed
    definition.write_text(text.format(tmp=tmp_path))
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = []
    for content in ("one", "another"):
        file.write_text(content)
        source = find_image(str(definition), mounts_files=True)
        assert isinstance(source, ImageSource)
        keys.append(source.content)
    assert keys[0] != keys[1]


DRIVER = """
import sys
from hermes_exec import SandboxPool
print("here", flush=True)
with SandboxPool("singularity", **eval(sys.argv[1])) as pool, pool.slot() as slot:
    pass
"""


async def test_a_build_ends_with_its_driver(options: dict[str, Any], layer: Path, tmp_path: Path) -> None:
    archive, mark = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin",)), f"77.{os.getpid()}"
    definition = tmp_path / "image.def"
    definition.write_text(f"Bootstrap: docker-archive\nFrom: {archive}\n\n%setup\n    sleep {mark}\n")
    options["image"] = str(definition)
    async with await anyio.open_process([sys.executable, "-c", DRIVER, repr(options)]) as driver:
        await until(lambda: marked(mark) != [])
        driver.kill()
    await until(lambda: marked(mark) == [], 20)


async def test_many_pools_build_an_image_once(options: dict[str, Any], layer: Path, tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin",))
    said: list[PullProgress] = []
    seen: list[str] = []

    async def use() -> None:
        pool = SandboxPool("singularity", image=f"docker-archive:{archive}", on_pull=said.append, **options)
        async with pool, pool.slot() as slot:
            seen.append((await slot.run("echo here")).stdout)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(use)
    assert seen == ["here\n"] * 4
    assert len(cached(options)) == 1
    assert sum("Build complete" in each.status for each in said) == 1


async def test_a_build_over_its_time_leaves_nothing(options: dict[str, Any], layer: Path, tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "image.tar", layer)
    with pytest.raises(LaunchTimeout, match="pull_timeout_s"):
        await ran("true", image=f"docker-archive:{archive}", pull_timeout_s=0.05, **options)
    assert cached(options) == []
    with pytest.raises(ImageError, match="not in the cache"):
        await ran("true", image=f"docker-archive:{archive}", pull_policy="never", **options)


async def test_what_a_killed_build_left_goes_with_the_next_one(
    options: dict[str, Any], layer: Path, tmp_path: Path
) -> None:
    archive = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin",))
    assert await ran("echo 1", image=f"docker-archive:{archive}", **options) == "1\n"
    (name,) = cached(options)
    cache = Path(options["cache_dir"])
    (cache / name).rename(tmp_path / "elsewhere")
    (cache / f"{name}.part-dead").mkdir()
    assert await ran("echo 2", image=f"docker-archive:{archive}", **options) == "2\n"
    assert cached(options) == [name]


async def test_an_image_for_another_machine_is_told(options: dict[str, Any], layer: Path, tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "image.tar", layer, env=("PATH=/bin",))
    assert await ran("echo here", image=f"docker-archive:{archive}", **options) == "here\n"
    (name,) = cached(options)
    if not name.endswith(".sif"):
        pytest.skip("images are directories here, which do not say for which machine they are")
    image = bytearray(await anyio.Path(options["cache_dir"], name).read_bytes())
    # The format names the architecture after "a squashfs" and "the primary partition": 02 is amd64, 04 arm64.
    where = image.index(SQUASHFS_PRIMARY) + len(SQUASHFS_PRIMARY)
    image[where : where + 2] = b"02" if platform.machine() == "aarch64" else b"04"
    (tmp_path / "other.sif").write_bytes(image)
    with pytest.raises(ImageError, match="is not for this machine"):
        await ran("true", image=str(tmp_path / "other.sif"), **options)
    assert os.listdir(options["base_dir"]) == []


async def test_an_archive_that_is_broken_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(ImageError, match="cannot be fetched"):
        await ran("true", image=f"docker-archive:{tmp_path}/image.tar", **options)
    assert cached(options) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Registry]:
    with registry.registry(tmp_path, auth=False) as own:
        yield own


@pytest.mark.docker
async def test_an_image_of_a_registry(
    options: dict[str, Any], engine: DockerClient, docker_image: Image, server: Registry
) -> None:
    repository = f"{server.host}/team/tool"
    image = engine.images.get(docker_image("busybox"))
    image.tag(repository, "1")
    try:
        assert '"error"' not in engine.images.push(repository, "1")
    finally:
        engine.images.remove(f"{repository}:1", noprune=True)
    assert await ran("echo pulled", image=f"{repository}:1", no_https=True, **options) == "pulled\n"
    with pytest.raises(ImageError, match="cannot be fetched"):
        await ran("true", image=f"docker://{repository}:2", no_https=True, **options)
    assert len(cached(options)) == 1


@pytest.mark.docker
async def test_an_image_of_the_docker_daemon(options: dict[str, Any], docker_image: Image) -> None:
    assert await ran("echo here", image=f"docker-daemon:{docker_image('busybox')}", **options) == "here\n"
    (name,) = cached(options)
    assert await ran("echo file", image=str(Path(options["cache_dir"]) / name), **options) == "file\n"
    assert os.listdir(options["base_dir"]) == []
