"""What a tool call gives back."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hermes_exec.results import describe_result, first_lines

_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as Python has it in text (surrogateescape)."""


class Outcome(NamedTuple):
    """What a tool function returns: the result as data, the kind of trouble the model had, if any, and PNG images.

    `settle` is for a tool that only reads: it compares the outcome with earlier ones and returns the final outcome. It
    is called when all reads that came before have settled, so that reads side by side compare in order of arrival.
    """

    data: dict[str, object]
    error_kind: str | None = None
    images: tuple[bytes, ...] = ()
    settle: Callable[[], Outcome] | None = None


@dataclass(frozen=True)
class ToolResult:
    """The result of one tool call.

    `content` is the text for the model: JSON, or a `<persisted-output>` block when the JSON was too long. `data` is the
    same as a dict, always whole. `ok` says that the tool did what was asked (for the terminal: exit code 0);
    `error_kind` names the trouble otherwise. `spilled` is the path in the slot of the file that has the full text, or
    None. `images` are PNG images that belong to it (screenshots); `shows_images` says that the model is to be shown
    them (`ToolOptions.native_images`). `duration_s` is wall time.
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

    def __repr__(self) -> str:
        fields: dict[str, object] = {"name": self.name, "ok": self.ok, "content": first_lines(self.content)}
        if self.images:
            fields["images"] = len(self.images)
        return describe_result(self, "error_kind", "spilled", **fields)


CallTool = Callable[[str, Mapping[str, object]], Awaitable[ToolResult]]
"""Carries out a call that code makes; an ExecError is the end of the code."""


def to_json(data: object) -> str:
    """Return the JSON text of a result: compact, non-ASCII characters as they are, what UTF-8 cannot hold replaced.
    A byte of a file name that is not UTF-8 is written as the escape of its surrogate, by which tools open the file.
    Numbers that JSON does not have are text ("NaN").
    """
    try:
        text = json.dumps(data, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        data = json.loads(json.dumps(data, default=str), parse_constant=str)
        text = json.dumps(data, ensure_ascii=False)
    # They stand in strings only.
    text = _BYTE.sub(lambda byte: f"\\u{ord(byte.group()):04x}", text)
    return text.encode("utf-8", "replace").decode("utf-8")
