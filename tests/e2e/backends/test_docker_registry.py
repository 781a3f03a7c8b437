"""Images from a real registry: pull policies, what is missing, credentials. Skipped where no registry is to be had."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from hermes_exec import ImageError, LaunchTimeout, PullProgress, SandboxPool
from tests.e2e.backends.registry import PASSWORD, USER, Registry, publish, serving

# Not marked `docker`: that engine may be required where this program is not to be had.
pytestmark = pytest.mark.anyio
Image = Callable[[str], str]


@pytest.fixture(params=[False], ids=["open"])
def server(request: pytest.FixtureRequest, engine: DockerClient, tmp_path: Path) -> Iterator[Registry]:
    """A registry that starts empty; what the engine got from it is removed."""
    with serving(engine, tmp_path, auth=request.param) as own:
        yield own


async def content(image: str, **options: str) -> str:
    async with SandboxPool("docker", image=image, network=False, **options) as pool, pool.slot() as slot:  # type: ignore[arg-type]
        assert slot.image == image
        return (await slot.run("cat /version")).stdout.strip()


@pytest.mark.whole
async def test_the_policies(engine: DockerClient, server: Registry, docker_image: Image) -> None:
    image = publish(engine, server, docker_image("busybox"), "1", "first")
    with pytest.raises(ImageError, match=image):
        await content(image, pull_policy="never")
    seen: list[PullProgress] = []
    async with SandboxPool("docker", image=image, on_pull=seen.append) as pool, pool.slot() as slot:
        assert (await slot.run("cat /version")).stdout == "first\n"
    assert {progress.image for progress in seen} == {image}
    assert await content(image, pull_policy="never") == "first"
    kept = engine.images.get(image)
    publish(engine, server, docker_image("busybox"), "1", "second")
    kept.tag(*image.rsplit(":", 1))
    assert await content(image) == "first"
    assert await content(image, pull_policy="always") == "second"
    assert await content(image, pull_policy="never") == "second"


async def test_what_the_registry_does_not_have_is_named_at_once(
    engine: DockerClient, server: Registry, docker_image: Image
) -> None:
    image = publish(engine, server, docker_image("busybox"), "1", "first")
    for missing in (f"{image}2", f"{server.host}/team/other:1", f"{server.host}/team/tool@sha256:{'0' * 64}"):
        began = time.monotonic()
        async with SandboxPool("docker", image=missing) as pool:
            with pytest.raises(ImageError, match=missing):
                await pool.acquire()
            assert pool.stats().failures == 1
        assert time.monotonic() - began < 60


async def test_an_image_by_its_digest(engine: DockerClient, server: Registry, docker_image: Image) -> None:
    image = publish(engine, server, docker_image("busybox"), "1", "first")
    digest = engine.images.get_registry_data(image).id
    assert await content(f"{server.host}/team/tool@{digest}") == "first"


async def test_a_registry_that_does_not_answer_costs_no_more_than_the_pull_timeout(
    engine: DockerClient, server: Registry
) -> None:
    server.process.send_signal(19)
    try:
        began = time.monotonic()
        async with SandboxPool("docker", image=f"{server.host}/team/tool:1", pull_timeout_s=2) as pool:
            with pytest.raises(LaunchTimeout, match="pull_timeout_s=2"):
                await pool.acquire(timeout_s=60)
        assert time.monotonic() - began < 30
    finally:
        server.process.send_signal(18)


@pytest.mark.parametrize("server", [True], indirect=True, ids=["htpasswd"])
async def test_credentials_come_from_the_docker_configuration(
    engine: DockerClient, server: Registry, docker_image: Image, tmp_path: Path
) -> None:
    image = publish(engine, server, docker_image("busybox"), "1", "first")

    def config(password: str) -> str:
        path = tmp_path / f"{password}.json"
        secret = b64encode(f"{USER}:{password}".encode()).decode()
        path.write_text(json.dumps({"auths": {server.host: {"auth": secret}}}))
        return str(path)

    for given in ({}, {"docker_config": config("wrong")}):
        with pytest.raises(ImageError, match=f"{image}.*(no basic auth credentials|unauthorized)"):
            await content(image, **given)
    assert await content(image, docker_config=config(PASSWORD)) == "first"
