"""Images of sandboxes on Modal, built or fetched for real by the server on loopback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from hermes_exec import ConfigError, ImageError, SandboxPool
from hermes_exec.backends.modal.config import ModalConfig
from tests.e2e.backends.registry import PASSWORD, USER, publish, serving
from tests.engines.modal_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.modal]
Image = Callable[[str], str]


@pytest.fixture
def options(docker_image: Image, modal_server: Server) -> dict[str, Any]:
    return {"image": docker_image("debian"), "creates_per_s": None}


@pytest.mark.whole
async def test_a_dockerfile(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        f"FROM {options['image']}\nWORKDIR /from/image\nENV FROM_IMAGE=1\nCOPY note /from/note\n"
        "RUN echo run >>/from/note\n"
        'ENTRYPOINT ["/bin/false"]\n'
    )
    (tmp_path / "note").write_text("copied\n")
    async with SandboxPool("modal", image=f"dockerfile:{tmp_path}", workdir="image") as pool, pool.slot() as slot:
        result = await slot.run("pwd; echo $FROM_IMAGE; cat /from/note")
        assert result.stdout == "/from/image\n1\ncopied\nrun\n"


@pytest.mark.whole
async def test_an_image_object(options: dict[str, Any]) -> None:
    import modal

    mine = modal.Image.from_registry(options["image"]).run_commands("echo object >/object")
    config = ModalConfig(images={"mine": mine}, image="mine")
    async with SandboxPool(config) as pool, pool.slot() as slot:
        assert (await slot.run("cat /object")).stdout == "object\n"
    with pytest.raises(ConfigError, match=r"must be a modal\.Image, not str"):
        async with SandboxPool(ModalConfig(images={"mine": "debian"}, image="mine")) as pool, pool.slot():
            pass


async def test_an_image_that_cannot_be_built(options: dict[str, Any], modal_server: Server, tmp_path: Path) -> None:
    before = modal_server.running()
    with pytest.raises(ImageError, match=r"(?s)'no-such-image:1'.*the registry has no image no-such-image:1"):
        async with SandboxPool("modal", image="no-such-image:1") as pool, pool.slot():
            pass
    (tmp_path / "Dockerfile").write_text(f"FROM {options['image']}\nRUN echo what went wrong && false\n")
    with pytest.raises(ImageError, match="what went wrong"):
        async with SandboxPool("modal", image=f"dockerfile:{tmp_path}") as pool, pool.slot():
            pass
    with pytest.raises(ConfigError, match=r"there is no directory '.*/nothing'"):
        async with SandboxPool("modal", image=f"dockerfile:{tmp_path}/nothing"):
            pass
    assert modal_server.running() == before


@pytest.mark.whole
async def test_an_image_by_its_id(options: dict[str, Any], modal_server: Server) -> None:
    async with SandboxPool("modal", **options) as pool, pool.slot() as slot:
        known = modal_server.switch("state")["sandboxes"][slot.sandbox]["image"]
    async with SandboxPool("modal", image=known) as pool, pool.slot() as slot:
        assert (await slot.run("echo same image")).stdout == "same image\n"
        assert slot.image == known
    with pytest.raises(ConfigError, match="Image with id im-nothing not found"):
        async with SandboxPool("modal", image="im-nothing") as pool, pool.slot():
            pass


@pytest.mark.whole
@pytest.mark.parametrize("from_dockerfile", [False, True])
async def test_the_credentials_of_a_registry_are_a_secret_of_modal(
    options: dict[str, Any], engine: DockerClient, modal_server: Server, tmp_path: Path, *, from_dockerfile: bool
) -> None:
    secrets = {"right": {"REGISTRY_USERNAME": USER, "REGISTRY_PASSWORD": PASSWORD}, "other": {"TOKEN": "x"}}
    modal_server.switch("secrets", secrets)
    with serving(engine, tmp_path, auth=True) as registry:
        image = publish(engine, registry, options["image"], "1", "from the registry")
        (tmp_path / "Dockerfile").write_text(f"FROM {image}\n")
        name = f"dockerfile:{tmp_path}" if from_dockerfile else image

        async def content(**more: str) -> str:
            async with SandboxPool("modal", image=name, **more) as pool, pool.slot() as slot:  # type: ignore[arg-type]
                return (await slot.run("cat /version")).stdout

        with pytest.raises(ImageError, match=r"no basic auth credentials|unauthorized"):
            await content()
        with pytest.raises(ConfigError, match="Secret 'nothing' not found"):
            await content(registry_secret="nothing")
        with pytest.raises(ConfigError, match="REGISTRY_USERNAME and REGISTRY_PASSWORD"):
            await content(registry_secret="other")
        assert await content(registry_secret="right") == "from the registry\n"
