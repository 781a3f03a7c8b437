"""The tools of a toolbox as functions, for the program that execute_code runs in the slot.

The toolbox executes each call and returns its result, a dict, as it would return it to the model. The slot has this
text as hermes_tools.py, followed by a function for each tool; it is compatible with Python 3.6.
"""

import json
import os
import shlex
import socket
import time
from typing import Any, Callable, Dict

MAX_CALL_BYTES = 4 << 20


class ToolError(Exception):
    """The call could not be made, or was ended before its result arrived."""


def _call(tool: str, arguments: Dict[str, Any]) -> Any:
    line = json.dumps({"tool": tool, "arguments": arguments}).encode("ascii") + b"\n"
    if len(line) > MAX_CALL_BYTES:
        raise ToolError(
            f"{tool}: the arguments are {len(line)} bytes as JSON, above {MAX_CALL_BYTES}: pass data in a file"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(os.environ["HERMES_TOOLS_SOCKET"])
            connection.sendall(os.environ["HERMES_TOOLS_TOKEN"].encode("ascii") + b"\n" + line)
            with connection.makefile("rb") as lines:
                answer = lines.readline()
        except OSError as error:
            raise ToolError(f"{tool}: the toolbox cannot be reached: {error}") from error
    if not answer.endswith(b"\n"):
        raise ToolError(f"{tool}: the call was ended before its result arrived")
    parsed = json.loads(answer.decode("utf-8"))
    if "refused" in parsed:
        raise ToolError(f"{tool}: {parsed['refused']}")
    return parsed["result"]


def json_parse(text: str) -> Any:
    """Parse JSON text; control characters inside strings are accepted."""
    return json.loads(text, strict=False)


def shell_quote(text: str) -> str:
    """Quote text as one word of a shell command."""
    return shlex.quote(text)


def retry(function: Callable[[], Any], max_attempts: int = 3, delay: float = 2) -> Any:
    """Return the result of function().

    If it raises, call it again after delay, 2 * delay, ... seconds, at most max_attempts times in total.
    """
    for attempt in range(max_attempts):
        try:
            return function()
        except Exception:
            if attempt + 1 >= max_attempts:
                raise
            time.sleep(delay * 2**attempt)
    raise ValueError("max_attempts must be 1 or more")
