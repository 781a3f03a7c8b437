"""The function schemas of the tools, in the format of chat completion APIs, and a short example call of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

JsonObject = dict[str, object]


def _function(name: str, description: str, required: list[str], properties: JsonObject) -> JsonObject:
    parameters: JsonObject = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _field(kind: str, description: str, **more: object) -> JsonObject:
    return {"type": kind, "description": description, **more}


_CROSS_PROFILE = _field(
    "boolean", "Has no effect: every path is a path in your workspace machine. Leave it out.", default=False
)


FILE_ADVICE_NEEDS = frozenset({"read_file", "search_files", "patch"})
_FILE_ADVICE = " Use read_file, search_files and patch instead of cat, grep and sed."


def remove_file_advice(schema: JsonObject) -> None:
    """Remove the advice to use the file tools from a schema, for a model that does not have them."""
    function: Any = schema["function"]
    function["description"] = function["description"].replace(_FILE_ADVICE, "")


def _terminal() -> JsonObject:
    return _function(
        "terminal",
        "Run a shell command. The working directory, variables, functions, aliases and shell options persist "
        f"between calls.{_FILE_ADVICE} Long-running programs (servers, watchers): background=true, "
        "then the process tool.",
        ["command"],
        {
            "command": _field("string", "The command to run"),
            "background": _field(
                "boolean", "Start the command and return at once with a session_id for the process tool", default=False
            ),
            "timeout": _field(
                "integer",
                "Max seconds to wait (default: 180, foreground max: 600). Returns as soon as the command ends. "
                "Longer: background=true",
                minimum=1,
            ),
            "workdir": _field(
                "string", "Working directory for this command only. Defaults to the session working directory"
            ),
            "pty": _field("boolean", "Run in a pseudo-terminal, for interactive programs", default=False),
            "notify_on_complete": _field(
                "boolean",
                "With background=true: one notice when the process ends. Not together with watch_patterns, which "
                "is then dropped",
                default=False,
            ),
            "watch_patterns": _field(
                "array",
                "With background=true: strings to look for in the output, one notice per 15 seconds at most; for "
                "rare signals such as 'server ready'. "
                "Not together with notify_on_complete",
                items={"type": "string"},
            ),
        },
    )


def _process() -> JsonObject:
    actions = ["list", "poll", "log", "wait", "kill", "write", "submit", "close"]
    return _function(
        "process",
        "Manage background processes started with terminal(background=true): 'list' all, 'poll' status and "
        "latest output, 'log' output by lines, 'wait' until "
        "it ends or the timeout, 'kill' it and its children, 'write' raw data to its stdin, 'submit' data and "
        "Enter, 'close' its stdin (EOF).",
        ["action"],
        {
            "action": _field("string", "What to do", enum=actions),
            "session_id": _field(
                "string", "Session ID from the terminal's background result. Required for all actions except 'list'"
            ),
            "data": _field("string", "Text for 'write' and 'submit'"),
            "timeout": _field("integer", "Max seconds for 'wait' (at most 180 are waited)", minimum=1),
            "offset": _field("integer", "First line for 'log' (0-indexed; default: the last 200 lines)"),
            "limit": _field("integer", "Max lines for 'log' (default 200)", minimum=1),
        },
    )


def _read_file() -> JsonObject:
    return _function(
        "read_file",
        "Read a text file as 'LINE|TEXT' rows, with offset and limit for large files. Jupyter notebooks, Word "
        "documents and Excel workbooks are shown as text. "
        "Images and other binary files cannot be read.",
        ["path"],
        {
            "path": _field("string", "Path of the file (absolute, relative to the working directory, or ~/…)"),
            "offset": _field("integer", "Line to start from (1-indexed)", default=1, minimum=1),
            "limit": _field("integer", "Max lines to read (max: 2000)", default=500, minimum=1, maximum=2000),
        },
    )


def _write_file() -> JsonObject:
    return _function(
        "write_file",
        "Write a whole file, replacing its content. Makes parent directories. Use patch for changes inside a file.",
        ["path", "content"],
        {
            "path": _field("string", "Path of the file (made if it is not there, overwritten if it is)"),
            "content": _field("string", "The complete content"),
            "cross_profile": dict(_CROSS_PROFILE),
        },
    )


def _patch() -> JsonObject:
    return _function(
        "patch",
        "Change files in place. mode='replace' (needs path, old_string, new_string): replace a unique piece of "
        "text; small differences in white space are "
        "tolerated. mode='patch' (needs patch): a V4A patch over one or several files, applied as a whole or not "
        "at all. Returns a unified diff.",
        ["mode"],
        {
            "mode": _field("string", "'replace' or 'patch'", enum=["replace", "patch"], default="replace"),
            "path": _field("string", "For mode='replace': the file to change"),
            "old_string": _field(
                "string", "For mode='replace': the text to find, with enough surrounding lines to be unique"
            ),
            "new_string": _field("string", "For mode='replace': the new text; '' deletes the old text"),
            "replace_all": _field(
                "boolean", "Replace every occurrence instead of requiring a unique one", default=False
            ),
            "patch": _field(
                "string",
                "For mode='patch': the V4A text:\n*** Begin Patch\n*** Update File: path/to/file\n@@ context "
                "hint @@\n context line\n-removed line\n"
                "+added line\n*** End Patch\nAlso '*** Add File: p', '*** Delete File: p', '*** Move File: src -> dst'",
            ),
            "cross_profile": dict(_CROSS_PROFILE),
        },
    )


def _search_files() -> JsonObject:
    return _function(
        "search_files",
        "Search inside files (target='content', a regular expression) or find files by name (target='files', a "
        "glob such as '*.py', '.env', 'src/**/*.ts' or '~/notes/*', newest first). Each line is searched by itself. "
        "Hidden files are left out unless the glob or path names them. Ignore files (.gitignore) are respected.",
        ["pattern"],
        {
            "pattern": _field("string", "Regular expression for content, glob for files"),
            "target": _field("string", "'content' or 'files'", enum=["content", "files"], default="content"),
            "path": _field("string", "Directory or file to search in", default="."),
            "file_glob": _field("string", "Content search: only files that match this glob, such as '*.py'"),
            "limit": _field("integer", "Max results", default=50, minimum=1, maximum=10_000),
            "offset": _field("integer", "Results to skip", default=0, minimum=0),
            "output_mode": _field(
                "string",
                "Content search: matching lines, only file paths, or counts per file",
                enum=["content", "files_only", "count"],
                default="content",
            ),
            "context": _field(
                "integer", "Content search: lines before and after each match", default=0, minimum=0, maximum=50
            ),
        },
    )


def _execute_code() -> JsonObject:
    return _function(
        "execute_code",
        "Run a Python program that can call your tools as functions: `from hermes_tools import terminal, read_file`. "
        "Use it where three or more calls depend on each other, to loop over results, or to keep long results out of "
        "your context: only the program's output comes back. Each function takes the tool's arguments by name and "
        "returns its result as a dict (read_file(path)['content'], terminal(command)['output']). Also in "
        "hermes_tools: json_parse(text), shell_quote(text), retry(function, max_attempts=3, delay=2).",
        ["code"],
        {"code": _field("string", "The program. Print what you want to see")},
    )


_REF = "The element's reference from the snapshot, such as '@e5'"


def _browser() -> tuple[JsonObject, ...]:
    return (
        _function(
            "browser_navigate",
            "Open a URL in the browser of your machine and get a snapshot of the page: its accessibility tree, with "
            "references ([ref=e5]) that browser_click and browser_type take. Call it before the other browser tools.",
            ["url"],
            {"url": _field("string", "The URL; a path of your machine opens that file")},
        ),
        _function(
            "browser_snapshot",
            "Get a new snapshot of the page. References are valid until the page changes.",
            [],
            {"full": _field("boolean", "Everything, instead of the compact tree", default=False)},
        ),
        _function("browser_click", "Click an element.", ["ref"], {"ref": _field("string", _REF)}),
        _function(
            "browser_type",
            "Put text into a field, replacing its content. In a list: the name of the option. In a file field: the "
            "path of a file. A field with several values takes one per line.",
            ["ref", "text"],
            {"ref": _field("string", _REF), "text": _field("string", "The text")},
        ),
        _function(
            "browser_scroll",
            "Scroll the page by 500 pixels.",
            ["direction"],
            {"direction": _field("string", "Where to", enum=["up", "down"])},
        ),
        _function("browser_back", "Go back to the page before; in a tab without one, close it.", [], {}),
        _function(
            "browser_press",
            "Press a key where the focus is.",
            ["key"],
            {"key": _field("string", "The key: 'Enter', 'Tab', 'Escape', 'ArrowDown', 'Control+a', ...")},
        ),
        _function("browser_get_images", "List the images of the page, with their addresses and sizes.", [], {}),
        _function(
            "browser_vision",
            "Take a screenshot, for details that a snapshot cannot show: layout, charts, captchas, canvases.",
            ["question"],
            {
                "question": _field("string", "What you want to know"),
                "annotate": _field("boolean", "Draw the references over their elements", default=False),
            },
        ),
        _function(
            "browser_console",
            "Get the page's console messages and JavaScript errors; or, with an expression, its value.",
            [],
            {
                "clear": _field("boolean", "Forget the messages after reading them", default=False),
                "expression": _field("string", "JavaScript to evaluate in the page, such as 'document.title'"),
            },
        ),
        _function(
            "browser_cdp",
            "Send a command of the Chrome DevTools protocol to the page, for actions that no other tool offers.",
            ["method"],
            {
                "method": _field("string", "Such as 'Runtime.evaluate'"),
                "params": _field("object", "The parameters of the method"),
                "target_id": _field("string", "A tab other than the current one, from Target.getTargets"),
                "frame_id": _field("string", "A frame with a process of its own"),
                "timeout": _field("number", "Seconds to wait (default 30, at most 300)", default=30),
            },
        ),
        _function(
            "browser_dialog",
            "Answer a dialog of the page (alert, confirm, prompt) that a result named in pending_dialogs.",
            ["action"],
            {
                "action": _field("string", "What to do", enum=["accept", "dismiss"]),
                "prompt_text": _field("string", "The answer to a prompt"),
                "dialog_id": _field("string", "Which dialog, where there are several"),
            },
        ),
    )


def _browser_extra() -> tuple[JsonObject, ...]:
    return (
        _function("browser_close", "End the browser, with its tabs and cookies.", [], {}),
        _function(
            "browser_wait_for",
            "Wait until the page shows a text, until a text is gone, or for a time.",
            [],
            {
                "time": _field(
                    "number", "Seconds to wait; with a text, at most (default then 30)", minimum=0, maximum=60
                ),
                "text": _field("string", "The text to wait for"),
                "textGone": _field("string", "The text that has to disappear"),
            },
        ),
        _function(
            "browser_tabs",
            "List the tabs, open an empty one, or select or close one. The other tools work in the current tab.",
            ["action"],
            {
                "action": _field("string", "What to do", enum=["list", "new", "close", "select"]),
                "index": _field("integer", "The tab's index in the list; for 'close', default the current", minimum=0),
            },
        ),
        _function("browser_hover", "Move the mouse over an element.", ["ref"], {"ref": _field("string", _REF)}),
        _function(
            "browser_drag",
            "Drag an element to another one.",
            ["startRef", "endRef"],
            {
                "startRef": _field("string", "The reference of the element to drag"),
                "endRef": _field("string", "The reference of the element to drop it on"),
            },
        ),
        _function(
            "browser_network_requests",
            "List the newest requests of the page since it was opened: methods, addresses and statuses.",
            [],
            {
                "static": _field("boolean", "Also successful requests for pages, images, scripts", default=False),
                "filter": _field("string", "Only addresses that contain this text, such as '/api/'"),
            },
        ),
        _function(
            "browser_storage_state",
            "Save the cookies and local storage of the browser to a file of your machine.",
            [],
            {"filename": _field("string", "The file", default="storage-state.json")},
        ),
        _function(
            "browser_set_storage_state",
            "Replace the cookies and local storage by those in a file of browser_storage_state.",
            ["filename"],
            {"filename": _field("string", "The file")},
        ),
    )


def schemas() -> Mapping[str, JsonObject]:
    """Return a mapping of tool name to function schema. Each call creates new values, so the caller may change them."""
    built = (
        _terminal(),
        _process(),
        _read_file(),
        _write_file(),
        _patch(),
        _search_files(),
        _execute_code(),
        *_browser(),
        *_browser_extra(),
    )
    return {tool_name(schema): schema for schema in built}


def tool_name(schema: JsonObject) -> str:
    """Return the name of the function in a schema."""
    function: Any = schema["function"]
    return str(function["name"])


EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "terminal": '{"command": "ls -la"}',
        "process": '{"action": "poll", "session_id": "proc_0123456789ab"}',
        "read_file": '{"path": "src/main.py", "offset": 1, "limit": 200}',
        "write_file": '{"path": "notes.txt", "content": "first line\\nsecond line\\n"}',
        "patch": '{"mode": "replace", "path": "src/main.py", "old_string": "x = 1", "new_string": "x = 2"}',
        "search_files": '{"pattern": "def main", "file_glob": "*.py"}',
        "execute_code": "{\"code\": \"from hermes_tools import terminal\\nprint(terminal('ls')['output'])\"}",
        "browser_navigate": '{"url": "https://example.org"}',
        "browser_snapshot": '{"full": false}',
        "browser_click": '{"ref": "@e5"}',
        "browser_type": '{"ref": "@e5", "text": "hello"}',
        "browser_scroll": '{"direction": "down"}',
        "browser_back": "{}",
        "browser_press": '{"key": "Enter"}',
        "browser_get_images": "{}",
        "browser_vision": '{"question": "What does the chart show?"}',
        "browser_console": '{"expression": "document.title"}',
        "browser_cdp": '{"method": "Page.getLayoutMetrics"}',
        "browser_dialog": '{"action": "accept"}',
        "browser_close": "{}",
        "browser_wait_for": '{"text": "Saved"}',
        "browser_tabs": '{"action": "select", "index": 0}',
        "browser_hover": '{"ref": "@e5"}',
        "browser_drag": '{"startRef": "@e5", "endRef": "@e7"}',
        "browser_network_requests": '{"filter": "/api/"}',
        "browser_storage_state": '{"filename": "storage-state.json"}',
        "browser_set_storage_state": '{"filename": "storage-state.json"}',
    }
)
"""A short valid call of each tool, as JSON text."""
