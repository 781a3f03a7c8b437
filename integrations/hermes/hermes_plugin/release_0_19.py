"""The backend in hermes-agent 0.19, which has no interface for it: functions and lists of its modules are replaced."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from hermes_plugin.availability import STRIPPED_KEYS, is_available, is_container
from hermes_plugin.context import PluginContext
from hermes_plugin.options import BACKEND, read_options

BACKEND_LISTS = (
    ("tools.terminal_tool", "_CONTAINER_BACKENDS"),
    ("agent.prompt_builder", "_REMOTE_TERMINAL_BACKENDS"),
    ("tools.env_probe", "_REMOTE_BACKENDS"),
    ("tools.skills_tool", "_REMOTE_ENV_BACKENDS"),
)
"""Where 0.19 lists the backends that run commands elsewhere, with other paths."""
SECRET_LISTS = (
    ("tools.environments.local", "_HERMES_PROVIDER_ENV_BLOCKLIST"),
    ("tools.environments.local", "_ALWAYS_STRIP_KEYS"),
)
"""Where 0.19 lists the variables that processes on this machine do not get."""
BATCH_TASK = re.compile(r"task_\d+")
"""The tasks of batch_runner.py, one for each row."""
_added: list[bool] = []


def add_backend(ctx: PluginContext) -> None:
    """Make `hermes_exec` a value of `terminal.backend`. Its own backends stay as they are.

    Only this package can call it twice in a process without an effect: hermes-agent reloads plugins.
    """
    ctx.register_hook("pre_tool_call", separate_batch_rows)
    if _added:
        return
    from tools import approval, terminal_tool
    from tools.registry import registry

    for names, values in ((BACKEND_LISTS, {BACKEND}), (SECRET_LISTS, STRIPPED_KEYS)):
        for module, name in names:
            owner = import_module(module)
            setattr(owner, name, getattr(owner, name) | values)
    terminal_tool._create_environment = _with_slots(terminal_tool._create_environment)
    check = _with_availability(terminal_tool.check_terminal_requirements)
    terminal_tool.check_terminal_requirements = check
    registry.get_entry("terminal").check_fn = check
    approval._should_skip_container_guards = _with_isolation(approval._should_skip_container_guards)
    _added.append(True)


def separate_batch_rows(task_id: str = "", **_: object) -> None:
    """Give a row of batch_runner.py a slot of its own: without an image, 0.19 would let all rows share one."""
    from tools import terminal_tool

    if BATCH_TASK.fullmatch(task_id) and terminal_tool._get_env_config()["env_type"] == BACKEND:
        overrides = terminal_tool._task_env_overrides.get(task_id, {})
        if "env_type" not in overrides:
            terminal_tool.register_task_env_overrides(task_id, {**overrides, "env_type": BACKEND})


def _with_slots(original: Callable[..., object]) -> Callable[..., object]:
    @wraps(original)
    def create_environment(env_type: str, image: str, cwd: str, timeout: int, *args: Any, **more: Any) -> object:
        if env_type != BACKEND:
            return original(env_type, image, cwd, timeout, *args, **more)
        from tools import terminal_tool

        from hermes_plugin.environment import SlotEnvironment

        task_id = more.get("task_id", "default")
        overrides = terminal_tool._task_env_overrides.get(task_id, {})
        return SlotEnvironment(
            read_options(),
            task_id=task_id,
            image=overrides.get("docker_image") or None,
            cwd=cwd,
            timeout=timeout,
            persistent=not overrides and bool(terminal_tool._get_env_config()["container_persistent"]),
            lost_error=RuntimeError,
        )

    return create_environment


def _with_availability(original: Callable[[], bool]) -> Callable[[], bool]:
    @wraps(original)
    def check_terminal_requirements() -> bool:
        from tools import terminal_tool

        if terminal_tool._get_env_config()["env_type"] != BACKEND:
            return original()
        return is_available()

    return check_terminal_requirements


def _with_isolation(original: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(original)
    def should_skip_container_guards(env_type: str, *args: Any, **more: Any) -> bool:
        if env_type != BACKEND:
            return original(env_type, *args, **more)
        return is_container()

    return should_skip_container_guards
