"""Size limits of results: the full text goes to a file in the slot, and the model sees a preview and the path."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes_exec.errors import ExecError
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import translate_os_errors
from hermes_exec.tools.call.results import ToolResult, to_json
from hermes_exec.tools.options import ToolOptions

if TYPE_CHECKING:
    from hermes_exec.slot.slot import Slot

RESULTS_DIRECTORY = "hermes-results"
EXEMPT = frozenset({"read_file"})
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def result_path(slot: Slot, name: str) -> str:
    """Return the path in the slot for a file that belongs to a result."""
    return f"{slot.tmp.rstrip('/')}/{RESULTS_DIRECTORY}/{name}"


async def save_output(slot: Slot, data: bytes, path: str | None = None) -> str | None:
    """Write output that a result does not show to a new file in the slot, or append it to the file `path`.

    Return the path, or None if the file cannot be written.
    """
    append, path = path is not None, path or result_path(slot, f"output-{secrets.token_hex(6)}.txt")
    try:
        with translate_os_errors(path):
            await slot.files.write_bytes(path, data, append=append)
    except ToolFailure:
        return None
    return path


def saved_note(path: str | None, *, is_whole: bool) -> str:
    """Return the end of a notice that an output was cut: where the whole output, or its kept part, is."""
    return f"; {'the full output' if is_whole else 'the kept part of it'} is in {path}, see read_file" if path else ""


def file_name(call_id: str) -> str:
    """Return a safe file name for the full result of a call, derived from its call id."""
    return (_UNSAFE.sub("_", call_id).strip("._")[:120] or "result") + ".txt"


def spill_block(text: str, path: str, preview_chars: int) -> str:
    """Return the block that replaces a text which was written to `path`."""
    size = len(text.encode("utf-8", "replace")) / 1024
    size_text = f"{size / 1024:.1f} MB" if size >= 1024 else f"{size:.1f} KB"
    preview = _preview(text, preview_chars)
    return (
        f"<persisted-output>\nThis tool result was too large ({len(text):,} characters, {size_text}).\nFull output "
        f"saved to: {path}\n"
        "Use the read_file tool with offset and limit to access specific sections of this output.\n\n"
        f"Preview (first {len(preview)} "
        f"chars):\n{preview}{'' if len(preview) == len(text) else chr(10) + '...'}\n</persisted-output>"
    )


def cut_block(text: str, preview_chars: int, reason: str) -> str:
    """Return the block that replaces a text which could not be written to a file."""
    preview = _preview(text, preview_chars)
    return (
        f"<truncated-output>\nThis tool result was too large ({len(text):,} characters) and could not be saved in "
        f"the slot ({reason}).\n"
        f"Preview (first {len(preview)} chars):\n{preview}\n...\n</truncated-output>"
    )


def _preview(text: str, preview_chars: int) -> str:
    preview = text[:preview_chars]
    newline = preview.rfind("\n")
    return preview[:newline] if len(text) > preview_chars and newline > preview_chars // 2 else preview


async def fit_result(slot: Slot, result: ToolResult, options: ToolOptions) -> ToolResult:
    """Return `result`; if it exceeds the limit of one result, with its text in a file."""
    if result.name in EXEMPT or len(result.content) <= options.result_limit_chars:
        return result
    return await spill(slot, result, options)


async def spill(slot: Slot, result: ToolResult, options: ToolOptions) -> ToolResult:
    """Write a result's text to a file in the slot and return the result with a preview instead.

    If the slot has no room for the file, the result is cut. Infrastructure errors are raised.
    """
    path = result_path(slot, file_name(result.call_id))
    text = format_result(result.data)
    try:
        await slot.files.write_bytes(path, text.encode("utf-8", "replace"))
    except OSError as error:
        if isinstance(error, ExecError):
            raise
        reason = error.strerror or type(error).__name__
        return replace(result, content=cut_block(result.content, options.preview_chars, reason))
    return replace(result, content=spill_block(text, path, options.preview_chars), spilled=path)


def format_result(data: Mapping[str, object]) -> str:
    """Format a result as lines that read_file can page through.

    Short fields come first, then each list row by row and each long text as it is. JSON would be a single line, which
    read_file cannot page.
    """
    head: list[str] = []
    sections: list[str] = []
    for key, value in data.items():
        if isinstance(value, str) and (len(value) > 200 or "\n" in value):
            sections.append(f"=== {key} ===\n{value}")
        elif isinstance(value, list) and len(value) > 1:
            sections.append(
                f"=== {key} ===\n" + "\n".join(item if isinstance(item, str) else to_json(item) for item in value)
            )
        else:
            head.append(f"{key}: {to_json(value)}")
    return "\n".join([*head, *sections]) + "\n"


async def fit_turn(
    slot: Slot, results: Sequence[ToolResult], options: ToolOptions, limit_chars: int | None = None
) -> list[ToolResult]:
    """Return the results of one turn, of which the largest are written to files until the total is within
    `limit_chars`.

    `limit_chars` defaults to the limit of the options.
    """
    limit = options.turn_limit_chars if limit_chars is None else limit_chars
    fitted = list(results)
    total = sum(len(result.content) for result in fitted)
    for index in sorted(range(len(fitted)), key=lambda at: -len(fitted[at].content)):
        if total <= limit:
            break
        result = fitted[index]
        if result.spilled is not None or len(result.content) <= options.preview_chars * 2:
            continue
        fitted[index] = await spill(slot, result, options)
        total += len(fitted[index].content) - len(result.content)
    return fitted
