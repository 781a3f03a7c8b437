"""Images that are made ready before slots are asked for, on each backend that has images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_exec import ConfigError, ImageError, PullProgress, SandboxPool, SlotClosed
from tests.support.sshd import Server

pytestmark = pytest.mark.anyio
NAME_ERROR = "must be names of images"


@pytest.mark.singularity
async def test_definitions_are_built_ahead(singularity_image: Callable[[str], str], tmp_path: Path) -> None:
    base = singularity_image("busybox")
    texts = {"good": "%environment\n    export TOLD=yes\n", "bad": f"%files\n    {tmp_path}/absent /x\n"}
    for name, section in texts.items():
        (tmp_path / f"{name}.def").write_text(f"Bootstrap: localimage\nFrom: {base}\n\n{section}")
    good, bad, directory = f"{tmp_path}/good.def", f"{tmp_path}/bad.def", "dockerfile:."
    seen: list[PullProgress] = []
    options: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "on_pull": seen.append}
    async with SandboxPool("singularity", image=base, **options) as pool:
        results = await pool.prefetch([bad, good, base, directory])
        assert (results[good], results[base]) == (None, None)
        assert isinstance(results[bad], ImageError)
        assert "absent" in str(results[bad])
        assert isinstance(results[directory], ConfigError)
        assert {news.image for news in seen} >= {good}
        built = len(seen)
        async with pool.slot(image=good) as slot:
            assert (await slot.run("echo $TOLD")).stdout == "yes\n"
        assert len(seen) == built


async def test_a_backend_without_images_says_so() -> None:
    async with SandboxPool("local") as pool:
        for images in (["debian:12"], []):
            with pytest.raises(ConfigError, match="backend 'local' has no images"):
                await pool.prefetch(images)


@pytest.mark.ssh
async def test_so_does_ssh(ssh_server: Server) -> None:
    async with SandboxPool("ssh", **ssh_server.options()) as pool:
        with pytest.raises(ConfigError, match="backend 'ssh' has no images"):
            await pool.prefetch(["debian:12"])


@pytest.mark.docker
def test_bad_input_and_the_blocking_face(docker_image: Callable[[str], str]) -> None:
    base = docker_image("busybox")
    with SandboxPool("docker", image=base, profiles={"small": {}}) as pool:
        for images, profile, why in (
            (base, None, NAME_ERROR),
            ([""], None, NAME_ERROR),
            ([7], None, NAME_ERROR),
            (["a\udcffb"], None, "image"),
            ([base], "smal", "small"),
        ):
            with pytest.raises(ConfigError, match=why):
                pool.prefetch(images, profile)  # type: ignore[arg-type]
        assert pool.prefetch([base], profile="small") == {base: None}
        assert pool.prefetch([]) == {}
    with pytest.raises(SlotClosed):
        pool.prefetch([base])
