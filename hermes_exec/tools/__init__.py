"""Tool calls of a model, carried out in a slot: `Toolbox` and what belongs to it."""

from hermes_exec.tools.distributions import DISTRIBUTIONS, Draw, draw_toolsets
from hermes_exec.tools.failure import ToolFailure
from hermes_exec.tools.host import HostTool, tool
from hermes_exec.tools.options import ToolOptions
from hermes_exec.tools.results import ToolResult
from hermes_exec.tools.schemas import schemas
from hermes_exec.tools.toolbox import Toolbox
from hermes_exec.tools.toolsets import KNOWN_TOOLS, SHIPPED, TOOLSETS, Selection, select
from hermes_exec.tools.watch import Notice

__all__ = [
    "DISTRIBUTIONS",
    "KNOWN_TOOLS",
    "SHIPPED",
    "TOOLSETS",
    "Draw",
    "HostTool",
    "Notice",
    "Selection",
    "ToolFailure",
    "ToolOptions",
    "ToolResult",
    "Toolbox",
    "draw_toolsets",
    "schemas",
    "select",
    "tool",
]
