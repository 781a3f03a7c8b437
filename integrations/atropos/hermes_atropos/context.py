"""What a reward may do in the slot of its rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hermes_exec import ExecError, Slot
from hermes_exec.results import KillReceipt
from hermes_exec.tools import Toolbox, ToolResult

LocalPath = str
_TERMINAL_S = 180.0


@dataclass(frozen=True)
class ToolOutcome:
    """What a tool did: `output` and `error` are texts, `exit_code` is that of the terminal (None for other tools), and
    `metadata` the whole result.
    """

    success: bool
    output: str = ""
    error: str = ""
    exit_code: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class NamedCall(Protocol):
    """A tool call as an object: `name` and `arguments`."""

    name: str
    arguments: Any


class ExecTool(Protocol):
    """Calls a tool in the slot of the rollout: `await exec_tool("terminal", {"command": "ls"})`, or with one object
    that has `name` and `arguments`.
    """

    async def __call__(self, tool: str | NamedCall, arguments: Mapping[str, Any] | None = None) -> ToolOutcome:
        """Call it; what goes wrong in the tool is in the outcome."""
        ...


class ToolContext:
    """The slot of a rollout, for its reward: the model's tools, and files to and from this host, byte for byte.

    `slot` is the slot itself (`run`, `files`, …), `meta` what `setup_trajectory_workspace` gave. Its terminal is
    another shell than the model's.
    """

    def __init__(self, slot: Slot, *, meta: Mapping[str, Any] | None = None) -> None:
        self.slot = slot
        self.meta = dict(meta or {})
        self._toolbox = Toolbox(slot, ["terminal", "file"])

    async def terminal(self, command: str, timeout: float = _TERMINAL_S) -> dict[str, Any]:
        """Run a command: `{"exit_code", "output", …}`, 124 when it took longer than `timeout` seconds. Long output is
        cut in the middle; `slot.run` gives all of it.
        """
        return await self.call_tool("terminal", {"command": command, "timeout": timeout})

    async def read_file(self, path: str) -> dict[str, Any]:
        """As the model's tool of this name, with numbered lines and a limit; `slot.files.read_bytes` gives bytes."""
        return await self.call_tool("read_file", {"path": path})

    async def read_text(self, path: str) -> str | None:
        """The text of a file of the model's; None where there is no file, or none that can be read. Bytes that are no
        UTF-8 are replaced.
        """
        try:
            return (await self.slot.files.read_bytes(path)).decode("utf-8", "replace")
        except OSError as error:
            if isinstance(error, ExecError | TimeoutError):
                raise
            return None

    async def write_file(self, path: str, content: str) -> dict[str, Any]:
        """As the model's tool of this name."""
        return await self.call_tool("write_file", {"path": path, "content": content})

    async def search(self, query: str, path: str = ".") -> dict[str, Any]:
        """Lines that match a regular expression, as the model's `search_files` gives them."""
        return await self.call_tool("search_files", {"pattern": query, "path": path})

    async def upload_file(self, local: LocalPath, remote: str) -> None:
        """Copy a file of this host into the slot. Raises OSError, and ExecError when the slot is lost."""
        await self.slot.files.upload(local, remote)

    upload_dir = upload_file

    async def download_file(self, remote: str, local: LocalPath) -> None:
        """Copy a file of the slot to this host. Raises OSError, and ExecError when the slot is lost."""
        await self.slot.files.download(remote, local)

    download_dir = download_file

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call any tool; a tool that is not there gives `{"error": …}`. Raises ExecError when the slot is lost."""
        return (await self._call(name, arguments)).data

    async def exec_tool(self, tool: str | NamedCall, arguments: Mapping[str, Any] | None = None) -> ToolOutcome:
        """See `ExecTool`."""
        name, tool_arguments = (tool, arguments or {}) if isinstance(tool, str) else (tool.name, tool.arguments)
        result = await self._call(name, tool_arguments)
        data = result.data
        code = data.get("exit_code")
        return ToolOutcome(
            success=result.ok,
            output=str(data.get("output", data.get("content", result.content))),
            error=str(data.get("error") or ""),
            exit_code=code if isinstance(code, int) else None,
            metadata=data,
        )

    async def cleanup(self) -> KillReceipt:
        """End every process of the slot."""
        return await self.slot.kill_all()

    async def _call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        return await self._toolbox.call(name, arguments)
