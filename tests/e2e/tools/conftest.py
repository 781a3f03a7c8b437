"""One pool a module and backend, one fresh slot and Toolbox a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from hermes_exec import SandboxPool
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox, ToolResult
from tests.conftest import require_engine


@pytest.fixture(scope="module", params=["local", pytest.param("docker-debian", marks=pytest.mark.docker)])
async def pool(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> AsyncIterator[SandboxPool]:
    """A pool of each backend in turn, with two slots in its sandbox."""
    engine, _, image = str(request.param).partition("-")
    require_engine(engine)
    options: dict[str, Any] = {"image": docker_image(image)} if image else {}
    async with SandboxPool(engine, slots_per_sandbox=2, max_sandboxes=2, **options) as made:
        yield made


@pytest.fixture
async def slot(pool: SandboxPool) -> AsyncIterator[Slot]:
    """A clean slot."""
    async with pool.slot() as slot:
        yield slot


@pytest.fixture
async def toolbox(slot: Slot) -> AsyncIterator[Toolbox]:
    """The default tools of that slot."""
    async with Toolbox(slot) as made:
        yield made


class Caller:
    """Calls tools and insists on success, for the steps that are not what a test is about."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox = toolbox

    async def __call__(self, name: str, /, **arguments: object) -> dict[str, Any]:
        """Call a tool; the result as data. An error result fails the test."""
        result = await self.toolbox.call(name, arguments)
        assert result.ok, result.content
        return result.data

    async def fails(self, name: str, /, **arguments: object) -> ToolResult:
        """Call a tool that is to answer with an error result."""
        result = await self.toolbox.call(name, arguments)
        assert not result.ok, result.content
        return result

    async def sh(self, command: str, **arguments: object) -> str:
        """The output of a command that succeeds."""
        return str((await self("terminal", command=command, **arguments))["output"])


@pytest.fixture
def call(toolbox: Toolbox) -> Caller:
    """Call a tool of the Toolbox by keyword arguments."""
    return Caller(toolbox)
