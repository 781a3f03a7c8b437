"""The browser and execute_code beyond local and Docker: they are programs of the slot, whatever it is in."""

from __future__ import annotations

import pytest

from hermes_exec import SandboxPool
from hermes_exec.tools import Toolbox, ToolOptions
from tests.conftest import require_engine
from tests.e2e.browser.conftest import of_the_browser
from tests.engines import options_of

pytestmark = pytest.mark.anyio
TOOLSETS = ["terminal", "file", "browser", "code_execution"]
PAGE = "data:text/html,<title>Hi</title><button>go</button>"
CODE = """
from hermes_tools import terminal, write_file
write_file('said.txt', 'by code')
print(terminal('cat said.txt')['output'])
"""


def marked(backend: str) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, backend), pytest.mark.one_of(2)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=marked(name)) for name in ("ssh", "singularity", "nomad", "modal")]
)
async def test_a_page_and_a_program(backend: str) -> None:
    require_engine(backend)
    if backend == "ssh":
        require_engine("chromium")
    with options_of(backend, "browser") as options:
        if backend == "nomad":
            options["slot_root"] = "shared"  # what its containers allow here
        async with SandboxPool(backend, **options) as pool, pool.slot() as slot:
            async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_mode="kernel")) as kernel:
                assert (await kernel.call("execute_code", {"code": "a = 6"})).ok
                assert (await kernel.call("execute_code", {"code": "print(a * 7)"})).data["output"] == "42\n"
            async with Toolbox(slot, TOOLSETS) as toolbox:
                done = await toolbox.call("execute_code", {"code": CODE})
                assert (done.data["output"], done.data["tool_calls_made"]) == ("by code\n", 2)
                page = await toolbox.call("browser_navigate", {"url": PAGE})
                assert (page.data.get("title"), page.ok) == ("Hi", True), page.content
                assert len((await toolbox.call("browser_vision", {"question": "?"})).images) == 1
                assert await of_the_browser(slot)
                await slot.reset()
                assert await of_the_browser(slot) == []
