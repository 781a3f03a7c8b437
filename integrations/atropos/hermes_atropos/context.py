"""Access to the slot of a rollout for reward functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hermes_agent.rewards import show_value
from hermes_atropos.errors import EnvironmentMistake
from hermes_exec import ExecError, Slot
from hermes_exec.results import KillReceipt
from hermes_exec.tools import Toolbox, ToolOptions, ToolResult

LocalPath = str
_MISTAKES = frozenset({"unknown_tool", "malformed_json", "missing_argument", "wrong_type"})
"""Kinds of calls that no work of a model explains."""
_TERMINAL_S = 180.0
_OPTIONS = ToolOptions(terminal_max_timeout_s=24 * 3600)
"""The limits of tools for the author's own code, which may wait longer than a model."""


@dataclass(frozen=True)
class ToolOutcome:
    """The outcome of a tool call. `output` and `error` are texts, `exit_code` is the terminal's (None for other tools),
    and `metadata` is the full result.
    """

    success: bool
    output: str = ""
    error: str = ""
    exit_code: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class NamedCall(Protocol):
    """A tool call as an object with `name` and `arguments`."""

    name: str
    arguments: Any


class ExecTool(Protocol):
    """A function that calls a tool in the slot of the rollout: `await exec_tool("bash", {"command": "ls"}, timeout=9)`,
    or with one object that has `name` and `arguments`.

    `bash` runs a command in a shell of its own, which starts in the working directory: `output` is stdout, `error` is
    stderr. `terminal` is the model's tool, whose shell keeps its directory and variables.
    """

    async def __call__(
        self, tool: str | NamedCall, arguments: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> ToolOutcome:
        """Call the tool. Errors of the tool are in the outcome. `timeout` is the limit of a command in seconds.

        Raises:
            EnvironmentMistake: If there is no such tool, or its arguments are wrong. The run ends.
        """
        ...


class ToolContext:
    """The slot of a rollout, for computing its reward: the model's tools, and binary file transfer to and from this
    host.

    `slot` is the slot itself (`run`, `files`, …) and `meta` the return value of `setup_trajectory_workspace`. The
    terminal tool uses its own shell, not the model's.
    """

    def __init__(self, slot: Slot, *, meta: Mapping[str, Any] | None = None) -> None:
        self.slot = slot
        self.meta = dict(meta or {})
        self._toolbox = Toolbox(slot, ["terminal", "file"], options=_OPTIONS)

    async def terminal(self, command: str, timeout: float = _TERMINAL_S) -> dict[str, Any]:
        """Run a command and return `{"exit_code", "output", …}`. The exit code is 124 if it takes longer than `timeout`
        seconds. Long output is cut in the middle; use `slot.run` for all of it.
        """
        return await self.call_tool("terminal", {"command": command, "timeout": timeout})

    async def read_file(self, path: str) -> dict[str, Any]:
        """Call the model's `read_file` tool, which numbers lines and limits the length. Use `slot.files.read_bytes` for
        the content.
        """
        return await self.call_tool("read_file", {"path": path})

    async def read_text(self, path: str) -> str | None:
        """Return the text of a file that the model wrote, or None if the file is missing or cannot be read. Bytes that
        are not valid UTF-8 are replaced.
        """
        try:
            return (await self.slot.files.read_bytes(path)).decode("utf-8", "replace")
        except OSError as error:
            if isinstance(error, ExecError | TimeoutError):
                raise
            return None

    async def write_file(self, path: str, content: str) -> dict[str, Any]:
        """Call the model's `write_file` tool."""
        return await self.call_tool("write_file", {"path": path, "content": content})

    async def search(self, query: str, path: str = ".") -> dict[str, Any]:
        """Return the lines that match a regular expression, in the format of the model's `search_files` tool."""
        return await self.call_tool("search_files", {"pattern": query, "path": path})

    async def upload_file(self, local: LocalPath, remote: str) -> None:
        """Copy a file or directory of this host into the slot.

        Raises:
            OSError: If the file cannot be read or written.
            ExecError: If the slot is lost.
        """
        await self.slot.files.upload(local, remote)

    upload_dir = upload_file

    async def download_file(self, remote: str, local: LocalPath) -> None:
        """Copy a file or directory of the slot to this host.

        Raises:
            OSError: If the file cannot be read or written.
            ExecError: If the slot is lost.
        """
        await self.slot.files.download(remote, local)

    download_dir = download_file

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call any tool and return its result. An unknown tool returns `{"error": …}`.

        Raises:
            ExecError: If the slot is lost.
        """
        return (await self._call(name, arguments)).data

    async def exec_tool(
        self, tool: str | NamedCall, arguments: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> ToolOutcome:
        """See `ExecTool`."""
        name, tool_arguments = (tool, arguments or {}) if isinstance(tool, str) else (tool.name, tool.arguments)
        if name == "bash":
            return await self._bash(tool_arguments, timeout)
        if name == "terminal" and timeout is not None:
            tool_arguments = {**tool_arguments, "timeout": math.ceil(timeout)}
        result = await self._call(name, tool_arguments)
        if result.error_kind in _MISTAKES:
            raise EnvironmentMistake(f"exec_tool: {result.data['error']}")
        data = result.data
        code = data.get("exit_code")
        return ToolOutcome(
            success=result.ok,
            output=str(data.get("output", data.get("content", result.content))),
            error=str(data.get("error") or ""),
            exit_code=code if isinstance(code, int) else None,
            metadata=data,
        )

    async def _bash(self, arguments: Mapping[str, Any], timeout: float | None) -> ToolOutcome:
        command = arguments.get("command")
        if not isinstance(command, str):
            raise EnvironmentMistake(f"exec_tool: bash takes {{'command': a text}}, not {show_value(arguments)}")
        timeout_s = arguments.get("timeout", _TERMINAL_S) if timeout is None else timeout
        result = await self.slot.run(command, timeout_s=timeout_s)
        late = f"the command took longer than {timeout_s:g} s" if result.timed_out else result.reason or ""
        return ToolOutcome(
            success=result.ok,
            output=result.stdout,
            error=result.stderr + late,
            exit_code=result.exit_code,
            metadata={"exit_code": result.exit_code, "timeout": result.timed_out, "truncated": result.truncated},
        )

    async def cleanup(self) -> KillReceipt:
        """End every process in the slot."""
        return await self.slot.kill_all()

    async def _call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        return await self._toolbox.call(name, arguments)
