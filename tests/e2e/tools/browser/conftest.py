"""A slot without network that has a browser and a site of its own, on each backend."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_exec import SandboxPool
from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox, ToolOptions, ToolResult
from hermes_exec.tools.browser import browser, results, tools
from tests.conftest import require_engine

SITE = Path(__file__).with_name("site.py")
PORT = 8123
HOME = f"http://localhost:{PORT}"
TOOLSETS = ["terminal", "file", "browser"]
WAITS = {
    browser: ("ANSWER_S", "DOWNLOAD_S", "NEW_TAB_S", "SETTLE_S", "ERROR_PAGE_S"),
    results: ("LOAD_S",),
    tools: ("ANSWER_S", "LOAD_S"),
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Playwright's client knows asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Waits that end as soon as there is what they wait for are long enough for a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in WAITS.items():
            for name in names:
                patch.setattr(module, name, 30.0)
        yield


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
async def pool(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> AsyncIterator[SandboxPool]:
    """A pool without network whose slots have a browser."""
    async with browser_pool(request, docker_image) as made:
        yield made


def browser_pool(request: pytest.FixtureRequest, docker_image: Callable[[str], str], **more: Any) -> SandboxPool:
    """A pool of the backend that the test is for."""
    engine = str(getattr(request, "param", "local"))
    require_engine(engine)
    if engine == "local":
        require_engine("chromium")
    options: dict[str, Any] = {"network": False, "slots_per_sandbox": 2, "max_sandboxes": 1, **more}
    if engine == "docker":
        options["image"] = docker_image("browser")
    return SandboxPool(engine, **options)


@dataclass
class Surfer:
    """Calls the browser tools of a toolbox, and remembers the last snapshot."""

    toolbox: Toolbox
    snapshot: str = ""
    results: list[ToolResult] = field(default_factory=list)

    async def call(self, name: str, **arguments: object) -> ToolResult:
        """Call browser_<name>."""
        result = await self.toolbox.call(f"browser_{name}", arguments)
        self.results.append(result)
        self.snapshot = str(result.data.get("snapshot", self.snapshot))
        return result

    async def __call__(self, name: str, **arguments: object) -> dict[str, Any]:
        """As `call`, and it has to succeed."""
        result = await self.call(name, **arguments)
        assert result.ok, result.content
        assert result.data["success"] is True
        return result.data

    async def fails(self, name: str, **arguments: object) -> ToolResult:
        """As `call`, and it has to fail, saying so."""
        result = await self.call(name, **arguments)
        assert not result.ok, result.content
        assert result.data["success"] is False
        assert result.data["error"]
        return result

    async def goto(self, path: str) -> dict[str, Any]:
        """Open a page of the site."""
        return await self("navigate", url=f"{HOME}{path}")

    def ref(self, what: str) -> str:
        """The reference of the first element whose line has this text."""
        for line in self.snapshot.splitlines():
            if what in line and (found := re.search(r"\[ref=(\w+)\]", line)):
                return f"@{found[1]}"
        raise AssertionError(f"no element {what!r} with a reference in\n{self.snapshot}")

    async def value(self, expression: str) -> object:
        """The value of an expression in the page."""
        return (await self("console", expression=expression))["result"]

    async def look(self) -> str:
        """A new snapshot."""
        await self("snapshot")
        return self.snapshot


@pytest.fixture
async def slot(pool: SandboxPool) -> AsyncIterator[Slot]:
    """A slot in which the site is served."""
    async with pool.slot() as slot:
        await serve_site(slot)
        yield slot


async def serve_site(slot: Slot, port: int = PORT) -> None:
    """Start the site in a slot."""
    await slot.files.write_bytes("/tmp/site.py" if slot.tmp == "/tmp" else f"{slot.tmp}/site.py", SITE.read_bytes())
    served = await slot.spawn(["python3", f"{slot.tmp}/site.py", str(port)])
    said = b""
    async for piece in served.stdout:
        said += piece
        if b"\n" in said:
            break
    assert said.startswith(b"ready"), (said, await served.output(stream="stderr"))
    await served.stdout.aclose()


@pytest.fixture
async def surf(slot: Slot) -> AsyncIterator[Surfer]:
    """The browser tools in that slot."""
    async with Toolbox(slot, [*TOOLSETS, "browser_extra"]) as toolbox:
        surfer = Surfer(toolbox)
        yield surfer
        await toolbox.call("browser_close", {})


@pytest.fixture
async def changing(slot: Slot) -> AsyncIterator[Surfer]:
    """The same, with what each action changed."""
    options = ToolOptions(browser_changes=True, native_images=True)
    async with Toolbox(slot, TOOLSETS, tools=["browser_close"], options=options) as toolbox:
        yield Surfer(toolbox)
        await toolbox.call("browser_close", {})


async def of_the_browser(slot: Slot) -> list[str]:
    """What of a browser is in a slot: processes and files."""
    running = [process.argv[0] for process in await slot.processes() if any("chrom" in word for word in process.argv)]
    found = await slot.run(
        f"ls -d {slot.tmp}/*chrom* {slot.tmp}/hermes-browser* $HOME/Downloads $HOME/.config 2>/dev/null"
    )
    return [*running, *found.stdout.split()]


async def fewer_with(text: str, number: int) -> bool:
    """Whether less than this number of this host's processes have a text in their command line, within a minute."""
    for _ in range(1200):
        if sum([text in await _command_line(entry) async for entry in anyio.Path("/proc").glob("[0-9]*")]) < number:
            return True
        await anyio.sleep(0.05)
    return False


async def _command_line(entry: anyio.Path) -> str:
    try:
        return (await (entry / "cmdline").read_bytes()).decode("utf-8", "replace")
    except OSError:
        return ""  # it has ended
