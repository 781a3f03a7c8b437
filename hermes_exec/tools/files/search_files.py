"""The search_files tool: regular expressions in file contents, or files by name, with exact totals."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.checks import LARGEST_COUNT
from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import translate_os_errors
from hermes_exec.tools.call.results import CallOutcome, to_json
from hermes_exec.tools.state.file_views import fingerprint_of
from hermes_exec.tools.state.tool_state import ToolState

if TYPE_CHECKING:
    from hermes_exec.results import SearchResult

_DENSE_FROM = 5
_LINE_CHARS = 500
_SKIPPED = {"ignored": "ignored by .gitignore or .ignore", "link": "behind a link", "directory": "not a file"}
_FORMAT = (
    "path-grouped: each file path on its own line, followed by indented '<line>: <content>' rows for "
    "matches in that file"
)


async def search_files(state: ToolState, arguments: dict[str, Any]) -> CallOutcome:
    """Search with the slot's rights and in its view of the files.

    The pattern is passed as data, so it can never act as an option of a program.
    """
    if not arguments["pattern"]:
        raise ToolFailure("bad_value", "'pattern' is empty.")
    names = arguments["target"] == "files"
    mode = "files" if names else arguments["output_mode"]
    result = await _search(state, arguments, names, mode)
    format_path = _PathFormatter(state, arguments["path"])
    offset, limit = arguments["offset"], arguments["limit"]
    if mode == "content":
        data = format_matches(result, format_path)
        count = len(result.matches)
        total = result.total
    else:
        files = result.files if mode == "files" else result.files[offset : offset + limit]
        count = len(files)
        total = result.total if mode == "files" else result.total_files
        data = {"total_count": result.total if mode == "count" else total}
        if mode == "count":
            data["counts"] = {format_path(file.path): file.count for file in files}
        else:
            data["files"] = [format_path(file.path) for file in files]
    if offset + count < total:
        data["truncated"] = True
        data["_hint"] = (
            f"Results truncated. Use offset={offset + count} to see more, or narrow with a more specific pattern "
            "or file_glob."
        )
    elif result.truncated and mode in ("content", "files"):
        data |= {
            "truncated": True,
            "limit_reason": "search_limit",
            "warning": "The search was stopped early: narrow it with path or file_glob.",
        }
    if result.binary_skipped:
        data["binary_skipped"] = result.binary_skipped
    if not total and result.skipped:
        data["_hint"] = _describe_skipped(result, format_path)
    if result.errors:
        data["warning"] = f"{data.get('warning', '')} Incomplete: {'; '.join(result.errors[:5])}".strip()
    return CallOutcome(data, settle=partial(_limit_repetition, state, arguments, data))


def _describe_skipped(result: SearchResult, format_path: Callable[[str], str]) -> str:
    parts = []
    for skipped in result.skipped:
        names = ", ".join(format_path(path) for path in skipped.paths)
        more = ", …" if skipped.count > len(skipped.paths) else ""
        parts.append(f"{skipped.count} {_SKIPPED.get(skipped.reason, skipped.reason)} ({names}{more})")
    return (
        f"Left out: {'; '.join(parts)}. To search one of them, name it in 'path'; binary files need a program in the "
        "terminal."
    )


async def _search(state: ToolState, arguments: dict[str, Any], names: bool, mode: str) -> SearchResult:
    path = state.resolve(arguments["path"])
    pattern = _expand_home(state, arguments["pattern"]) if names else arguments["pattern"]
    window = (
        {"limit": min(arguments["limit"], LARGEST_COUNT), "offset": min(arguments["offset"], LARGEST_COUNT)}
        if mode in ("content", "files")
        else {"limit": 0, "offset": 0}
    )
    with anyio.move_on_after(state.options.search_timeout_s), translate_os_errors(arguments["path"]):
        try:
            return await state.slot.files.search(
                pattern,
                path=path,
                target="files" if names else "content",
                glob=_expand_home(state, arguments.get("file_glob") or "") or None,
                context=arguments["context"],
                max_line=_LINE_CHARS,
                **window,
            )
        except ValueError as error:
            raise ToolFailure("bad_pattern", f"{error}.") from None
    message = (
        f"The search took longer than {state.options.search_timeout_s:g} s and was stopped. Narrow it with "
        "path or file_glob."
    )
    raise ToolFailure("timeout", message, limit_reason="search_timeout")


def _expand_home(state: ToolState, glob: str) -> str:
    return state.slot.home + glob[1:] if glob.startswith("~/") else glob


class _PathFormatter:
    """Formats paths as the model wrote them: relative if it searched in a relative path."""

    def __init__(self, state: ToolState, requested_path: str) -> None:
        self._prefix = "" if requested_path.startswith(("/", "~")) else state.cwd.rstrip("/") + "/"

    def __call__(self, path: str) -> str:
        path = path.replace("/./", "/")
        return path.removeprefix(self._prefix) if self._prefix else path


def format_matches(result: SearchResult, format_path: Callable[[str], str]) -> dict[str, Any]:
    """Return the matches as data: a few as objects, more as rows below the path of their file."""
    data: dict[str, Any] = {"total_count": result.total}
    matches = result.matches
    if len(matches) < _DENSE_FROM and not any(match.before or match.after for match in matches):
        if matches:
            data["matches"] = [
                {"path": format_path(m.path), "line": m.line, "content": m.text[:_LINE_CHARS]} for m in matches
            ]
        return data
    rows: list[str] = []
    current = ""
    last_line = 0
    lines: dict[str, list[int]] = {}
    for match in matches:
        lines.setdefault(match.path, []).append(match.line)
    for numbers in lines.values():
        numbers.sort()
    for match in matches:
        path = format_path(match.path)
        if path != current:
            rows.append(path)
            current, last_line = path, 0
        first = match.line - len(match.before)
        for number, text in enumerate(match.before, first):
            if number > last_line:
                rows.append(f"  {number}- {text[:_LINE_CHARS].rstrip()}")
        rows.append(f"  {match.line}: {match.text[:_LINE_CHARS].rstrip()}")
        last_line = match.line
        following = bisect.bisect_right(lines[match.path], match.line)
        stop = (*lines[match.path][following : following + 1], match.line + len(match.after) + 1)[0]
        for number, text in enumerate(match.after, match.line + 1):
            if number < stop:
                rows.append(f"  {number}- {text[:_LINE_CHARS].rstrip()}")
                last_line = number
    context = " ('<line>- ' for context lines)" if any(match.before or match.after for match in matches) else ""
    data |= {"matches_format": _FORMAT + context, "matches_text": "\n".join(rows)}
    return data


def _limit_repetition(state: ToolState, arguments: dict[str, Any], data: dict[str, Any]) -> CallOutcome:
    if state.code_calls:
        return CallOutcome(data)
    count = state.searches.count(to_json(arguments), fingerprint_of(to_json(data).encode()))
    if count >= 4:
        message = (
            f"BLOCKED: You have run this exact search {count} times in a row. The results have NOT changed. "
            "You already have this information; proceed with your task."
        )
        return CallOutcome(
            {"error": message, "error_kind": "repeated", "pattern": arguments["pattern"], "already_searched": count},
            "repeated",
        )
    if count == 3:
        data["_warning"] = (
            "You have run this exact search 3 times in a row. The results have not changed. Use the information "
            "you already have."
        )
    return CallOutcome(data)
