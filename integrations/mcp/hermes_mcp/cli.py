"""`hermes-exec mcp`: an MCP server for coding clients, over standard input and output or over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import say
from hermes_exec.cli.kit.pools import (
    Backend,
    Config,
    Image,
    Options,
    Profile,
    TraceTo,
    parse_options,
    pool_of,
    settings_of,
)

if TYPE_CHECKING:
    from hermes_exec import SandboxPool
    from hermes_mcp.http import HttpOptions
    from hermes_mcp.project import Project

app = typer.Typer(invoke_without_command=True, subcommand_metavar="")


@app.callback(
    context_settings={"allow_interspersed_args": True},
    epilog="Example: hermes-exec mcp --backend docker --image python:3.12-slim --dir .",
)
def mcp(
    backend: Backend = None,
    image: Image = None,
    toolsets: Annotated[
        list[str] | None,
        typer.Option("--toolsets", "-t", metavar="NAMES", help="With commas, or repeated (default: terminal,file)."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="PROJECT", help="Copy this directory into each slot; on Docker, bind it."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP instead of standard input and output."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="HERMES_MCP_TOKEN",
            help="Bearer token of --http; required beyond loopback.",
            show_default=False,
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="ORIGIN", help="With --http: a web page's origin; may be repeated."),
    ] = None,
    idle_timeout_s: Annotated[
        float,
        typer.Option(
            "--idle-timeout", metavar="SECONDS", min=1, help="With --http: how long an unused slot of a client is kept."
        ),
    ] = 1800.0,
    tool_option: Annotated[
        list[str] | None,
        typer.Option("--tool-option", metavar="NAME=VALUE", help="A field of ToolOptions; may be repeated."),
    ] = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
    trace: TraceTo = None,
) -> None:
    """Give an MCP client, such as a coding agent, tools that work in an isolated slot.

    The default backend is `local`, with `min_isolation=namespaces`.
    """
    from hermes_exec.requirements import require_version
    from hermes_exec.tools import ToolOptions
    from hermes_mcp import SUPPORTED
    from hermes_mcp.http import HttpOptions
    from hermes_mcp.project import Project

    require_version("hermes-exec mcp", SUPPORTED)
    settings = settings_of(backend, image, config, option, profile)
    if settings.get("backend", "local") == "local":
        settings.setdefault("min_isolation", "namespaces")
    project = None if directory is None else Project(directory)
    if project is not None:
        project.add_to(settings)
    address = None if http is None else HttpOptions(http, token, allow_origin or ())
    tool_options = ToolOptions.of({"native_images": True} | parse_options(tool_option))
    names = [name for names in toolsets or () for name in names.split(",") if name]
    pool = pool_of(settings, trace=trace)
    server_options = {"options": tool_options, "idle_timeout_s": idle_timeout_s} | (
        {"toolsets": names} if names else {}
    )
    raise typer.Exit(run_async(lambda: _serve(pool, project, address, server_options)))


async def _serve(pool: SandboxPool, project: Project | None, http: HttpOptions | None, options: dict[str, Any]) -> int:
    from hermes_mcp.server import SlotServer

    if project is not None:
        options |= {"tools_of": project.tools, "instructions": project.instructions}
    server = SlotServer(pool, **options)
    try:
        if http is None:
            from hermes_mcp.stdio import serve_stdio

            await serve_stdio(server)  # clients show errors of calls, but not stderr
        else:
            from hermes_mcp.http import serve_http

            await pool.open()
            await serve_http(server, http, on_ready=lambda url: say(f"hermes-exec mcp: {url}"))
    finally:
        await pool.aclose()
    return exits.OK
