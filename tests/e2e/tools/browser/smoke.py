"""A page, a program and a reset in a slot of any backend: `python -m tests.e2e.tools.browser.smoke BACKEND JSON`."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio

from hermes_exec import SandboxPool
from hermes_exec.tools import Toolbox, ToolOptions
from tests.e2e.tools.browser.conftest import of_the_browser

TOOLSETS = ["terminal", "file", "browser", "code_execution"]
PAGE = "data:text/html,<title>Hi</title><button>go</button>"
CODE = """
from hermes_tools import terminal, write_file
write_file('said.txt', 'by code')
print(terminal('cat said.txt')['output'])
"""


async def a_page_and_a_program(backend: str, options: dict[str, Any]) -> None:
    """Fails when anything of it does not work, or is left after the reset."""
    async with SandboxPool(backend, **options) as pool, pool.slot() as slot:
        async with Toolbox(slot, TOOLSETS, options=ToolOptions(code_mode="kernel")) as kernel:
            assert (await kernel.call("execute_code", {"code": "a = 6"})).ok
            assert (await kernel.call("execute_code", {"code": "print(a * 7)"})).data["output"] == "42\n"
        async with Toolbox(slot, TOOLSETS) as toolbox:
            done = await toolbox.call("execute_code", {"code": CODE})
            assert (done.data["output"], done.data["tool_calls_made"]) == ("by code\n", 2), done.content
            page = await toolbox.call("browser_navigate", {"url": PAGE})
            assert (page.data.get("title"), page.ok) == ("Hi", True), page.content
            assert len((await toolbox.call("browser_vision", {"question": "?"})).images) == 1
            assert await of_the_browser(slot)
            await slot.reset()
            assert await of_the_browser(slot) == []


if __name__ == "__main__":
    anyio.run(a_page_and_a_program, sys.argv[1], json.loads(sys.argv[2]))
    print("all of it works")
