"""Images that are built of directories: once by content, for all who want them, and nothing half done."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from docker import DockerClient

from hermes_exec import ConfigError, ImageError, LaunchTimeout, PullProgress, SandboxPool, SlotClosed
from hermes_exec.backends.docker.build import REPOSITORY, tag_of
from hermes_exec.errors import ErrorCause
from tests.support.outside import mark, marked
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, docker_image: Callable[[str], str], engine: DockerClient) -> Iterator[Make]:
    """Writes a directory whose Dockerfile has these lines after its FROM; what was built of it is removed."""

    def made(*lines: str, name: str = "context", **files: str) -> str:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        text = "\n".join([f"FROM {docker_image('busybox')}", f"LABEL of={tmp_path}", *lines, ""])
        for file, content in {"Dockerfile": text, **files}.items():
            (directory / file).write_text(content)
        return f"dockerfile:{directory}"

    yield made
    for image in engine.images.list(filters={"label": f"of={tmp_path}"}):
        engine.images.remove(str(image.id), force=True)


@contextlib.contextmanager
def tags_seen(engine: DockerClient) -> Iterator[list[str]]:
    """The names that images are given meanwhile. Of what is past the daemon tells only the last 256 events."""
    events = engine.events(since=int(time.time()), decode=True, filters={"type": "image", "event": "tag"})
    seen: list[str] = []

    def read() -> None:
        seen.extend(event["Actor"]["Attributes"]["name"] for event in events)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        events.close()
        reader.join()


def directory_in(image: str) -> Path:
    return Path(image.removeprefix("dockerfile:"))


@pytest.mark.loops
async def test_a_slot_of_a_directory(make: Make, engine: DockerClient) -> None:
    image = make("COPY given /given", "ENV TOLD=yes", "WORKDIR /work", "USER 7:7", given="one")
    seen: list[PullProgress] = []
    pool = SandboxPool("docker", image=image, workdir="image", on_pull=seen.append)
    async with pool, pool.slot() as slot:
        done = await slot.run("cat /given; echo $TOLD; pwd; id -u")
        assert (done.stdout, slot.image) == ("oneyes\n/work\n7\n", image)
    assert {news.image for news in seen} == {image}
    assert any("COPY given" in news.status for news in seen)
    assert engine.images.list(name=REPOSITORY, filters={"reference": tag_of(directory_in(image), None)})


async def test_other_content_is_another_image(make: Make) -> None:
    image = make("COPY given /given", given="one")
    for content, times in (("one", 1), ("one", 0), ("other", 1)):
        (directory_in(image) / "given").write_text(content)
        seen: list[PullProgress] = []
        async with SandboxPool("docker", image=image, on_pull=seen.append) as pool, pool.slot() as slot:
            assert (await slot.run("cat /given")).stdout == content
        assert sum(news.status.startswith("Successfully built") for news in seen) == times


DRIVER = """
import sys
from hermes_exec import SandboxPool
with SandboxPool("docker", image=sys.argv[1]) as pool, pool.slot() as slot:
    print(slot.run("cat /made").stdout)
"""


async def test_many_build_an_image_once(make: Make, engine: DockerClient) -> None:
    """Pools of this process, sandboxes of one pool, directories of the same content, and other processes."""
    image, same = (make("RUN sleep 2; echo here > /made", name=name) for name in ("one", "same"))
    said: list[bytes] = []

    async def elsewhere() -> None:
        said.append((await anyio.run_process([sys.executable, "-c", DRIVER, image])).stdout)

    with tags_seen(engine) as seen:
        async with (
            SandboxPool("docker", image=image) as one,
            SandboxPool("docker", image=same) as other,
            anyio.create_task_group() as tasks,
        ):
            for pool in (one, one, other):
                tasks.start_soon(elsewhere)
                tasks.start_soon(pool.prefetch, [image, same])
                tasks.start_soon(use, pool)
        assert said == [b"here\n\n"] * 3
        built, last = tag_of(directory_in(image), None), f"{REPOSITORY}:last-{mark()}"
        engine.images.get(built).tag(last)
        await until(lambda: last in seen)
    assert seen.count(built) == 1


async def use(pool: SandboxPool) -> None:
    async with pool.slot() as slot:
        assert (await slot.run("cat /made")).stdout == "here\n"


async def test_a_build_that_fails_tells_the_end_of_its_log(make: Make, engine: DockerClient) -> None:
    image = make("RUN echo much before", "RUN echo why it fails >&2; exit 3")
    async with SandboxPool("docker", image=image) as pool:
        with pytest.raises(ImageError, match=r"cannot be built(.|\n)*why it fails(.|\n)*code: 3") as caught:
            await pool.acquire()
        assert pool.stats().failures == 1
    assert (caught.value.cause, caught.value.retryable) == (ErrorCause.CONFIG, False)
    assert "\x1b" not in str(caught.value)
    assert not engine.images.list(filters={"reference": tag_of(directory_in(image), None)})


@pytest.mark.parametrize("line", ["FRMO x", "COPY absent /x"])
async def test_a_dockerfile_that_is_wrong_is_an_image_error(line: str, make: Make) -> None:
    async with SandboxPool("docker", image=make(line)) as pool:
        with pytest.raises(ImageError, match=r"cannot be built(.|\n)*(FRMO|absent)"):
            await pool.acquire()


async def test_a_directory_that_is_not_there_is_told_before_anything(make: Make, tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/no.sock"
    with pytest.raises(ConfigError, match="there is no directory"):
        async with SandboxPool("docker", image=f"dockerfile:{tmp_path}/absent", base_url=nowhere):
            pass
    async with SandboxPool("docker", image=make()) as pool:
        with pytest.raises(ConfigError, match="no Dockerfile"):
            await pool.acquire(image=f"dockerfile:{tmp_path}")


async def test_a_policy_that_forbids_to_build(make: Make) -> None:
    image = make("ENV A=1")
    with pytest.raises(ImageError, match="pull_policy is 'never'"):
        async with SandboxPool("docker", image=image, pull_policy="never"):
            pass
    async with SandboxPool("docker", image=image) as pool:
        assert await pool.prefetch([image]) == {image: None}
    async with SandboxPool("docker", image=image, pull_policy="never") as pool, pool.slot() as slot:
        assert slot.image == image


@pytest.mark.whole
async def test_a_step_may_be_silent_for_longer_than_a_launch(make: Make) -> None:
    image = make("RUN sleep 8")
    async with SandboxPool("docker", image=image, launch_timeout_s=6) as pool, pool.slot() as slot:
        assert slot.image == image


@pytest.mark.loops
@pytest.mark.parametrize("how", ["cancelled", "over its time", "closed"])
async def test_a_build_that_is_given_up_ends_at_once(how: str, make: Make, engine: DockerClient) -> None:
    seconds = mark()
    image = make(f"RUN sleep {seconds}")
    patience_s = 4.0 if how == "over its time" else 600.0
    results: list[object] = []

    async def fetch(pool: SandboxPool) -> None:
        try:
            results.append((await pool.prefetch([image]))[image])
        except SlotClosed as error:
            results.append(error)

    async with SandboxPool("docker", image=image, pull_timeout_s=patience_s) as pool:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch, pool)
            with anyio.fail_after(60):
                while not marked(seconds):  # on a busy machine the time may be over before the step begins
                    if results:
                        assert isinstance(results.pop(), LaunchTimeout)
                        tasks.start_soon(fetch, pool)
                    await anyio.sleep(0.02)
            if how == "cancelled":
                tasks.cancel_scope.cancel()
            if how == "closed":
                await pool.aclose()
        await until(lambda: not marked(seconds))
    await until(lambda: not [one for one in engine.api.containers(all=True) if seconds in str(one["Command"])])
    assert [type(one) for one in results] == {
        "cancelled": [],
        "over its time": [LaunchTimeout],
        "closed": [SlotClosed],
    }[how]
    assert not engine.images.list(filters={"reference": tag_of(directory_in(image), None)})


@pytest.mark.whole
async def test_a_build_ends_with_its_driver(make: Make) -> None:
    seconds = mark()
    image = make(f"RUN sleep {seconds}")
    async with await anyio.open_process([sys.executable, "-c", DRIVER, image]) as driver:
        await until(lambda: marked(seconds))
        driver.kill()
    await until(lambda: not marked(seconds))


@pytest.mark.loops
async def test_one_that_fails_holds_up_no_other(make: Make, docker_image: Callable[[str], str], tmp_path: Path) -> None:
    base, good = docker_image("busybox"), make()
    absent, refused = f"dockerfile:{tmp_path}/absent", "127.0.0.1:9/absent:1"
    async with SandboxPool("docker", image=base) as pool:
        results = await pool.prefetch([refused, good, absent, base, good])
        assert list(results) == [refused, good, absent, base]
        assert (results[good], results[base]) == (None, None)
        assert isinstance(results[refused], ImageError)
        assert isinstance(results[absent], ConfigError)
        assert pool.stats().launches == 0


async def test_several_at_once_and_no_more(make: Make) -> None:
    images = [make(f"RUN sleep 2; echo {number}", name=str(number)) for number in range(4)]
    seen: dict[str, list[float]] = {}

    def tell(news: PullProgress) -> None:
        seen.setdefault(news.image, []).append(time.monotonic())

    async with SandboxPool("docker", image=images[0], launches_at_once=2, on_pull=tell) as pool:
        assert await pool.prefetch(images) == dict.fromkeys(images)
    spans = [(times[0], times[-1]) for times in seen.values()]
    at_once = [sum(first <= begin < last for first, last in spans) for begin, _ in spans]
    assert (len(spans), max(at_once)) == (4, 2)


@pytest.mark.whole
def test_the_command_line_builds_what_is_beside_it(make: Make, tmp_path: Path) -> None:
    make("COPY given /given", given="from here\n")
    run = [sys.executable, "-m", "hermes_exec.cli.main", "run", "-b", "docker", "--image"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HERMES_")}

    def ran(image: str) -> subprocess.CompletedProcess[str]:
        command = [*run, image, "--", "cat /given"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)

    done = ran("dockerfile:context")
    assert (done.stdout, done.returncode) == ("from here\n", 0), done.stderr
    assert "image dockerfile:context: " in done.stderr
    wrong = ran("dockerfile:absent")
    assert (wrong.returncode, "ConfigError" in wrong.stderr, "absent" in wrong.stderr) == (2, True, True)
