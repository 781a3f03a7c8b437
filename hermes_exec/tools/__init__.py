"""Tool calls of a model, executed in a slot: `Toolbox` and its options, results and host tools."""

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.json_reader import read_json
from hermes_exec.tools.call.results import ToolResult
from hermes_exec.tools.catalog.distributions import DISTRIBUTIONS, Draw, draw_toolsets, list_distributions
from hermes_exec.tools.catalog.host_tools import HostResult, HostTool, tool
from hermes_exec.tools.catalog.schemas import schemas
from hermes_exec.tools.catalog.selection import schemas_for
from hermes_exec.tools.catalog.toolsets import KNOWN_TOOLS, SHIPPED, TOOLSETS, Selection, select
from hermes_exec.tools.options import ToolOptions
from hermes_exec.tools.state.watch import Notice
from hermes_exec.tools.toolbox import Toolbox

__all__ = [
    "DISTRIBUTIONS",
    "KNOWN_TOOLS",
    "SHIPPED",
    "TOOLSETS",
    "Draw",
    "HostResult",
    "HostTool",
    "Notice",
    "Selection",
    "ToolFailure",
    "ToolOptions",
    "ToolResult",
    "Toolbox",
    "draw_toolsets",
    "list_distributions",
    "read_json",
    "schemas",
    "schemas_for",
    "select",
    "tool",
]
