"""The browser beside checkpoints: it ends with a restore, and the next call starts one over the restored profile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hermes_exec import SandboxPool
from hermes_exec.tools import Toolbox
from tests.conftest import require_engine
from tests.e2e.tools.browser.conftest import Surfer

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", ["keep", "end"])
async def test_browser_starts_again_in_a_restored_slot_and_in_a_fork(
    processes: str, docker_image: Callable[[str], str]
) -> None:
    require_engine("docker")
    image = docker_image("browser")
    async with (
        SandboxPool("docker", image=image, network=False, slots_per_sandbox=3, max_sandboxes=1) as pool,
        pool.slot() as slot,
    ):
        await slot.files.write_text("page.html", "<title>A</title><h1>the first</h1>")
        surf = Surfer(Toolbox(slot, ["browser"]))
        page = f"file://{slot.workspace}/page.html"
        await surf("navigate", url=page)
        assert "the first" in surf.snapshot
        checkpoint = await slot.checkpoint(processes=processes)  # type: ignore[arg-type]
        if processes == "keep":  # the browser goes on
            await surf("snapshot")
            assert "the first" in surf.snapshot
        else:  # the first call starts another one
            assert "the browser ended" in (await surf("navigate", url=page))["warning"]
        await slot.files.write_text("page.html", "<title>B</title><h1>the second</h1>")
        await surf("navigate", url=page)
        assert "the second" in surf.snapshot
        await slot.restore(checkpoint)
        await surf("navigate", url=page)
        assert "the first" in surf.snapshot
        async with pool.slot(from_=checkpoint) as fork:
            other = Surfer(Toolbox(fork, like=surf.toolbox))
            await other("navigate", url=page)
            assert "the first" in other.snapshot
            await surf("snapshot")
            assert "the first" in surf.snapshot
