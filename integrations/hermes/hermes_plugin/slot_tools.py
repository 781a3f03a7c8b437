"""The tools of hermes-exec in place of hermes-agent's own. They pass by its approvals, checkpoints and redaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from hermes_exec import ExecError
from hermes_exec.tools import schemas_for
from hermes_plugin.context import PluginContext
from hermes_plugin.options import BACKEND

TOOLSETS = ("terminal", "file", "code_execution")
REGISTERED_BY = ("tools.terminal_tool", "tools.process_registry", "tools.file_tools", "tools.code_execution_tool")
"""Modules whose import registers the tools of hermes-agent. They come first: a later import would replace ours."""


def replace_tools(ctx: PluginContext) -> None:
    """Replace terminal, process, the file tools and execute_code, if `terminal.backend` is `hermes_exec`.

    Raises:
        PermissionError: If config.yaml does not allow it: `plugins.entries.hermes-exec.allow_tool_override: true`.
    """
    for module in REGISTERED_BY:
        import_module(module)
    from tools.terminal_tool import _get_env_config

    if _get_env_config()["env_type"] != BACKEND:
        return
    for toolset in TOOLSETS:
        for schema in schemas_for([toolset]):
            function: Any = schema["function"]
            name = function["name"]
            ctx.register_tool(name=name, toolset=toolset, schema=function, handler=_handler(name), override=True)


def _handler(name: str) -> Callable[..., str]:
    def handle(args: Mapping[str, Any], task_id: str | None = None, **_: object) -> str:
        from tools.code_execution_tool import _get_or_create_env

        from hermes_plugin.environment import OutputEnd, SlotEnvironment
        from hermes_plugin.interrupts import Interrupted

        environment, _backend = _get_or_create_env(task_id or "default")
        if not isinstance(environment, SlotEnvironment):
            raise TypeError(f"task {task_id} has an environment of another backend: restart hermes-agent")
        output = OutputEnd()
        try:
            toolbox = environment.open_toolbox(TOOLSETS)
            result = environment.call(partial(toolbox.call, name, dict(args), on_output=output.add), f"{name} running")
        except Interrupted:
            return json.dumps(output.result_of_interrupt(), ensure_ascii=False)
        except ExecError as error:
            raise environment.lose(error) from error
        if notices := environment.take_notices():
            return json.dumps({**result.data, "notices": notices}, ensure_ascii=False)
        return result.content

    return handle
