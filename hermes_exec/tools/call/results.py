"""Results of tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hermes_exec.errors import ExecError
from hermes_exec.results import describe_result, first_lines

Failure = Literal["command", "call", "slot"]
PNG = b"\x89PNG\r\n\x1a\n"
SLOT_LOST = "slot_lost"
_WRONG_CALLS = frozenset(
    {
        *("unknown_tool", "malformed_json", "unknown_argument", "missing_argument", "wrong_type", "bad_value"),
        *("bad_pattern", "bad_patch", "timeout_too_long"),
        *("blocked", "no_calls_left"),  # refusals of an agent
    }
)
_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is not valid UTF-8, as Python represents it in text (surrogateescape)."""


class CallOutcome(NamedTuple):
    """The return value of a tool function: the result as data, the kind of the error, if any, and PNG images.

    `settle` is for tools that only read. It compares the outcome with earlier ones and returns the final outcome. It is
    called after all earlier reads have settled, so reads that run side by side are compared in order of arrival.
    """

    data: dict[str, object]
    error_kind: str | None = None
    images: tuple[bytes, ...] = ()
    settle: Callable[[], CallOutcome] | None = None


@dataclass(frozen=True)
class ToolResult:
    """The result of one tool call.

    `content` is the text for the model: JSON, or a `<persisted-output>` block if the JSON was too long. `data` holds
    the same as a dict, always complete. `ok` is True if the tool succeeded (for the terminal: exit code 0); otherwise
    `error_kind` names the error, and `failure` what failed. `spilled` is the path in the slot of the file with the full
    text, or None. `images` are the PNG images of the result (screenshots, figures, images of host tools);
    `shows_images` is True if the model receives them (`ToolOptions.native_images`). `duration_s` is wall time.
    """

    name: str
    content: str
    data: dict[str, object]
    ok: bool
    error_kind: str | None
    duration_s: float
    call_id: str
    spilled: str | None = None
    images: tuple[bytes, ...] = ()
    shows_images: bool = False

    @property
    def failure(self) -> Failure | None:
        """The part that failed, or None.

        `"command"`: the tool ran and failed. `"call"`: the name or the arguments were wrong, or the call was refused;
        nothing ran. `"slot"`: the slot was lost (`lost_slot`).
        """
        if self.ok:
            return None
        if self.error_kind == SLOT_LOST:
            return "slot"
        return "call" if self.error_kind in _WRONG_CALLS else "command"

    @classmethod
    def lost_slot(cls, name: str, error: ExecError, advice: str) -> ToolResult:
        """Return a result for the model in place of `error`, which `Toolbox.call` raised because the slot was lost.

        `advice` is the next step, as a sentence.
        """
        data: dict[str, object] = {"error": f"{error}. {advice}", "error_kind": SLOT_LOST}
        return cls(name, to_json(data), data, False, SLOT_LOST, 0.0, "")

    def __repr__(self) -> str:
        fields: dict[str, object] = {"name": self.name, "ok": self.ok, "content": first_lines(self.content)}
        if self.images:
            fields["images"] = len(self.images)
        return describe_result(self, "error_kind", "spilled", **fields)


CallTool = Callable[[str, Mapping[str, object]], Awaitable[ToolResult]]
"""A function that executes a tool call made by code. An ExecError ends the code."""


def to_json(data: object) -> str:
    """Return the JSON text of a result: compact, with non-ASCII characters unescaped.

    A file-name byte that is not UTF-8 is written as its surrogate escape, which tools accept in paths. Other characters
    that UTF-8 cannot encode are replaced. Numbers that JSON does not have become text ("NaN").
    """
    try:
        text = json.dumps(data, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        data = json.loads(json.dumps(data, default=str), parse_constant=str)
        text = json.dumps(data, ensure_ascii=False)
    # These bytes occur only inside strings.
    text = _BYTE.sub(lambda byte: f"\\u{ord(byte.group()):04x}", text)
    return text.encode("utf-8", "replace").decode("utf-8")
