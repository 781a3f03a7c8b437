"""The backend for versions of hermes-agent that have providers of terminal environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.terminal_env_provider import TerminalEnvironmentProvider

from hermes_exec import BackendUnavailable, ExecError
from hermes_plugin.availability import STRIPPED_KEYS, find_error, is_available, is_container
from hermes_plugin.options import BACKEND, read_options

CONFIG_SCHEMA: dict[str, dict[str, Any]] = {
    "backend": {
        "type": "select",
        "options": ["docker", "singularity", "nomad", "modal", "ssh", "local"],
        "description": "Where sandboxes run; local is this machine",
    },
    "image": {"type": "string", "description": "Image of the sandboxes"},
    "pool": {"type": "string", "description": "Configuration file with the other options of the pool"},
    "slots_per_sandbox": {"type": "number", "description": "Slots in one sandbox"},
    "network": {"type": "boolean", "description": "Whether commands have network"},
    "sync_files": {"type": "boolean", "description": "Whether skills and credential files are copied to ~/.hermes"},
    "tools": {"type": "boolean", "description": "Whether the tools of hermes-exec replace its own tools"},
}


class SlotProvider(TerminalEnvironmentProvider):
    """Creates environments whose commands run in slots."""

    is_remote = True
    is_container = True
    session_isolated_when_nonpersistent = True
    cache_path_base = "~/.hermes"
    strip_env_keys = STRIPPED_KEYS

    @property
    def name(self) -> str:
        """The value of `terminal.backend`."""
        return BACKEND

    @property
    def display_name(self) -> str:
        """The name in pickers and messages."""
        return "hermes-exec"

    @property
    def skip_container_guards(self) -> bool:
        """Whether hermes-agent need not ask about dangerous commands: they cannot reach files of this machine."""
        return is_container()

    def is_available(self) -> bool:
        """Return whether the options are right, without network."""
        return is_available()

    def probe(self) -> tuple[str, str]:
        """Return `ready`, or `needs_setup` and the mistake, without network."""
        error = find_error()
        return ("ready", "") if error is None else ("needs_setup", error)

    def doctor_checks(self) -> list[tuple[bool, str, str]]:
        """Return rows for `hermes doctor`: the options, and whether the engine answers."""
        if error := find_error():
            return [(False, "hermes-exec options", error)]
        options = read_options()
        rows = [(True, "hermes-exec options", f"(backend {options.pool_config()['backend']})")]
        try:
            options.open_pool()
        except BackendUnavailable as problem:
            return [*rows, (False, "hermes-exec engine", str(problem))]
        except ExecError as problem:
            return [*rows, (False, "hermes-exec pool", str(problem))]
        return [*rows, (True, "hermes-exec engine", "(answers)")]

    def get_config_schema(self) -> dict[str, dict[str, Any]]:
        """Return the options that the dashboard shows. All others of a pool may stand in config.yaml."""
        return CONFIG_SCHEMA

    def create_environment(
        self,
        *,
        cwd: str,
        timeout: int,
        task_id: str = "default",
        image: str | None = None,
        container_config: Mapping[str, Any] | None = None,
        **_: object,
    ) -> Any:  # noqa: ANN401 - its class needs hermes-agent
        """Return the environment of a task.

        `container_config` decides about persistence alone: the sizes in it are defaults of hermes-agent, not limits
        that the user chose.
        """
        from tools.environments.base import EnvironmentConnectionError
        from tools.terminal_tool import resolve_task_overrides

        from hermes_plugin.environment import SlotEnvironment

        overrides = resolve_task_overrides(task_id)
        return SlotEnvironment(
            read_options(),
            task_id=task_id,
            image=overrides.get("docker_image") or image or None,
            cwd=cwd,
            timeout=timeout,
            persistent=not overrides and bool((container_config or {}).get("container_persistent", True)),
            lost_error=EnvironmentConnectionError,
        )
