"""`hermes-exec tools`: the tools and toolsets that a model may call."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from hermes_exec.cli.kit.output import emit_json, table
from hermes_exec.cli.kit.pools import AlwaysJson, AsJson

Toolset = Annotated[
    list[str] | None, typer.Option("--toolset", "-t", help="Only the tools of this set; may be repeated.")
]


def list_tools(toolset: Toolset = None, as_json: AsJson = False) -> None:
    """List the tools of this package, and the toolsets that contain them."""
    from hermes_exec.tools import TOOLSETS, schemas, select

    wanted = select(toolset).tools if toolset else tuple(schemas())
    functions: dict[str, dict[str, str]] = {n: cast("Any", s)["function"] for n, s in schemas().items() if n in wanted}
    sets = {
        name: [s for s, tools in sorted(TOOLSETS.items()) if name in tools and not s.startswith("hermes-")]
        for name in wanted
    }
    if as_json:
        emit_json([{"name": n, "description": f["description"], "toolsets": sets[n]} for n, f in functions.items()])
        return
    rows = [
        (name, ", ".join(sets[name]), function["description"].partition(". ")[0])
        for name, function in functions.items()
    ]
    table(("tool", "toolsets", "description"), rows)


def print_schemas(
    names: Annotated[list[str] | None, typer.Argument(metavar="TOOL", help="Tools (default: all).")] = None,
    toolset: Toolset = None,
    as_json: AlwaysJson = True,
) -> None:
    """Print the function schemas of tools, in the form of the OpenAI API."""
    from hermes_exec.tools import schemas, select
    from hermes_exec.tools.catalog.toolsets import require_tool

    for name in names or ():
        require_tool(name)
    wanted = [*(names or ()), *(select(toolset).tools if toolset else ())] or list(schemas())
    emit_json([schemas()[name] for name in dict.fromkeys(wanted)])


def show_distributions(as_json: AsJson = False) -> None:
    """List the distributions of toolsets, with the chance of each toolset in percent."""
    from hermes_exec.tools import DISTRIBUTIONS, select

    if as_json:
        emit_json({name: dict(chances) for name, chances in DISTRIBUTIONS.items()})
        return
    absent = {name for chances in DISTRIBUTIONS.values() for name in chances if not select([name]).tools}
    rows = [
        (
            name,
            ", ".join(f"{toolset}{'*' if toolset in absent else ''} {chance}" for toolset, chance in chances.items()),
        )
        for name, chances in DISTRIBUTIONS.items()
    ]
    table(("distribution", "toolsets (%; * has no tool in this package)"), rows)


def add_to(app: typer.Typer) -> None:
    """Add the commands `tools list`, `tools schema` and `tools distributions`."""
    tools = typer.Typer(no_args_is_help=True, help="The tools that a model may call.")
    tools.command("list", epilog="Example: hermes-exec tools list --toolset file")(list_tools)
    tools.command("schema", epilog="Example: hermes-exec tools schema terminal read_file")(print_schemas)
    tools.command("distributions", epilog="Example: hermes-exec tools distributions")(show_distributions)
    app.add_typer(tools, name="tools")
