"""The MCP server: the tools of a Toolbox as MCP tools, each request in the slot of its client."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.errors import AcquireTimeout, ExecError
from hermes_exec.tools import Notice, ToolOptions, ToolResult, schemas_for
from hermes_mcp.held_slots import HeldSlots, ToolsOf, is_lost
from hermes_mcp.progress import OutputProgress

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from hermes_exec import SandboxPool

DEFAULT_TOOLSETS = ("terminal", "file")
IDLE_TIMEOUT_S = 1800.0
SLOT_HEADER = "hermes-slot"
SESSION_HEADER = "mcp-session-id"
PROCESS_KEY = "process"
INSTRUCTIONS = (
    "All tools work in one isolated machine (a slot), not on the user's machine. Its files, processes and shell state "
    "stay from call to call."
)
LOST = (
    "The slot is gone with its files and processes. The next call has a new slot. This call may have run and is not "
    "repeated."
)
ALL_IN_USE = (
    "Clients of this server hold all slots: allow more of them (-o max_sandboxes=N), or release unused ones "
    "sooner (--idle-timeout SECONDS)."
)


class SlotServer:
    """An MCP server whose tools work in slots of `pool`. The first call opens the pool; its owner closes it.

    `mcp` is the server of the package mcp.

    Args:
        pool: The pool of the slots.
        toolsets: Names of toolsets, as for `Toolbox`.
        tools_of: Returns the host tools of a slot; without a slot, tools that are only described.
        options: Limits of the tools. Images are always passed on.
        instructions: Text for the client's model, besides the descriptions of the tools.
        idle_timeout_s: How long the slot of an HTTP client is kept without a request.

    Raises:
        ConfigError: If a toolset has no such name.
    """

    def __init__(
        self,
        pool: SandboxPool,
        toolsets: Sequence[str] = DEFAULT_TOOLSETS,
        *,
        tools_of: ToolsOf = lambda slot: (),  # noqa: ARG005
        options: ToolOptions | None = None,
        instructions: str = "",
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        from mcp.server.lowlevel.server import Server

        self.slots = HeldSlots(pool, toolsets, tools_of, options or ToolOptions(native_images=True), idle_timeout_s)
        self._tools = [_describe_tool(schema) for schema in schemas_for(toolsets, tools=tools_of(None))]
        self.mcp: Server[Any] = Server(
            "hermes-exec",
            version=version("hermes-exec"),
            instructions=f"{INSTRUCTIONS} {instructions}".strip(),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Release idle slots during the block."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.slots.drop_idle)
            yield
            tasks.cancel_scope.cancel()

    async def _list_tools(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        import mcp_types as types

        return types.ListToolsResult(tools=self._tools)

    async def _call_tool(
        self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        progress = OutputProgress(ctx.session.report_progress) if _wants_progress(ctx) else None
        try:
            async with (
                self.slots.toolbox(slot_key(ctx.request)) as toolbox,
                nullcontext() if progress is None else progress.reporting(),
            ):
                result = await toolbox.call(params.name, params.arguments or {}, on_output=progress)
                notices = await toolbox.notices()
        except ExecError as error:
            if is_lost(error):
                result, notices = ToolResult.lost_slot(params.name, error, LOST), []
            else:
                remedy = f". {ALL_IN_USE}" if isinstance(error, AcquireTimeout) else ""
                return _error(f"{type(error).__name__}: {error}{remedy}")
        return _call_result(result, notices)


def _wants_progress(ctx: ServerRequestContext[Any]) -> bool:
    return ctx.meta is not None and ctx.meta.get("progress_token") is not None


def slot_key(request: Any) -> str | None:  # noqa: ANN401 - the HTTP request of starlette, None over stdio
    """Return the key of a request's slot; None for a slot of this request only.

    Over stdio the slot belongs to the process. Over HTTP the client names it, or it belongs to the client's session.
    """
    if request is None:
        return PROCESS_KEY
    return key_of_headers(request.headers)


def key_of_headers(headers: Mapping[str, str]) -> str | None:
    """Return the key of the slot of an HTTP request."""
    if name := headers.get(SLOT_HEADER):
        return f"slot {name}"
    session = headers.get(SESSION_HEADER)
    return f"session {session}" if session else None


def _describe_tool(schema: Mapping[str, Any]) -> types.Tool:
    import mcp_types as types

    function = schema["function"]
    return types.Tool(
        name=function["name"], description=function["description"], input_schema=dict(function["parameters"])
    )


def _call_result(result: ToolResult, notices: Sequence[Notice]) -> types.CallToolResult:
    """Return a result for the client. A command with a nonzero exit code is not an error of the tool."""
    import mcp_types as types

    images = [
        types.ImageContent(type="image", data=b64encode(image).decode(), mime_type="image/png")
        for image in result.images
    ]
    texts = [types.TextContent(type="text", text=notice.text) for notice in notices]
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=result.content), *images, *texts],
        is_error=result.failure is not None and result.error_kind != "exit_code",
    )


def _error(text: str) -> types.CallToolResult:
    import mcp_types as types

    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
