"""The schemas that models know: names, types, defaults and enums of every parameter."""

from __future__ import annotations

import jsonschema
import pytest

from hermes_exec.tools.catalog.schemas import EXAMPLES, schemas
from hermes_exec.tools.catalog.toolsets import SHIPPED

NONE = object()
TABLE: dict[str, tuple[list[str], dict[str, tuple[str, object]]]] = {
    "terminal": (
        ["command"],
        {
            "command": ("string", NONE),
            "background": ("boolean", False),
            "timeout": ("integer", NONE),
            "workdir": ("string", NONE),
            "pty": ("boolean", False),
            "notify_on_complete": ("boolean", False),
            "watch_patterns": ("array", NONE),
        },
    ),
    "process": (
        ["action"],
        {
            "action": ("string", NONE),
            "session_id": ("string", NONE),
            "data": ("string", NONE),
            "timeout": ("integer", NONE),
            "offset": ("integer", NONE),
            "limit": ("integer", NONE),
        },
    ),
    "read_file": (["path"], {"path": ("string", NONE), "offset": ("integer", 1), "limit": ("integer", 500)}),
    "write_file": (
        ["path", "content"],
        {"path": ("string", NONE), "content": ("string", NONE), "cross_profile": ("boolean", False)},
    ),
    "patch": (
        ["mode"],
        {
            "mode": ("string", "replace"),
            "path": ("string", NONE),
            "old_string": ("string", NONE),
            "new_string": ("string", NONE),
            "replace_all": ("boolean", False),
            "patch": ("string", NONE),
            "cross_profile": ("boolean", False),
        },
    ),
    "search_files": (
        ["pattern"],
        {
            "pattern": ("string", NONE),
            "target": ("string", "content"),
            "path": ("string", "."),
            "file_glob": ("string", NONE),
            "limit": ("integer", 50),
            "offset": ("integer", 0),
            "output_mode": ("string", "content"),
            "context": ("integer", 0),
        },
    ),
    "execute_code": (["code"], {"code": ("string", NONE)}),
    "browser_navigate": (["url"], {"url": ("string", NONE)}),
    "browser_snapshot": ([], {"full": ("boolean", False)}),
    "browser_click": (["ref"], {"ref": ("string", NONE)}),
    "browser_type": (["ref", "text"], {"ref": ("string", NONE), "text": ("string", NONE)}),
    "browser_scroll": (["direction"], {"direction": ("string", NONE)}),
    "browser_back": ([], {}),
    "browser_press": (["key"], {"key": ("string", NONE)}),
    "browser_get_images": ([], {}),
    "browser_vision": (["question"], {"question": ("string", NONE), "annotate": ("boolean", False)}),
    "browser_console": ([], {"clear": ("boolean", False), "expression": ("string", NONE)}),
    "browser_cdp": (
        ["method"],
        {
            "method": ("string", NONE),
            "params": ("object", NONE),
            "target_id": ("string", NONE),
            "frame_id": ("string", NONE),
            "timeout": ("number", 30),
        },
    ),
    "browser_dialog": (
        ["action"],
        {"action": ("string", NONE), "prompt_text": ("string", NONE), "dialog_id": ("string", NONE)},
    ),
    "browser_close": ([], {}),
    "browser_wait_for": ([], {"time": ("number", NONE), "text": ("string", NONE), "textGone": ("string", NONE)}),
    "browser_tabs": (["action"], {"action": ("string", NONE), "index": ("integer", NONE)}),
    "browser_hover": (["ref"], {"ref": ("string", NONE)}),
    "browser_drag": (["startRef", "endRef"], {"startRef": ("string", NONE), "endRef": ("string", NONE)}),
    "browser_network_requests": ([], {"static": ("boolean", False), "filter": ("string", NONE)}),
    "browser_storage_state": ([], {"filename": ("string", "storage-state.json")}),
    "browser_set_storage_state": (["filename"], {"filename": ("string", NONE)}),
}
ENUMS = {
    ("process", "action"): ["list", "poll", "log", "wait", "kill", "write", "submit", "close"],
    ("patch", "mode"): ["replace", "patch"],
    ("search_files", "target"): ["content", "files"],
    ("search_files", "output_mode"): ["content", "files_only", "count"],
    ("browser_scroll", "direction"): ["up", "down"],
    ("browser_dialog", "action"): ["accept", "dismiss"],
    ("browser_tabs", "action"): ["list", "new", "close", "select"],
}


@pytest.mark.parametrize("name", SHIPPED)
def test_parameters_have_the_names_types_and_defaults_that_models_know(name: str) -> None:
    function = schemas()[name]["function"]
    assert isinstance(function, dict)
    assert function["name"] == name
    parameters = function["parameters"]
    jsonschema.Draft202012Validator.check_schema(parameters)
    required, fields = TABLE[name]
    assert parameters["required"] == required
    assert {
        key: (field["type"], field.get("default", NONE)) for key, field in parameters["properties"].items()
    } == fields
    for key, field in parameters["properties"].items():
        assert field.get("enum") == ENUMS.get((name, key))


def test_every_shipped_tool_has_a_schema_and_an_example() -> None:
    assert tuple(schemas()) == SHIPPED
    assert tuple(EXAMPLES) == SHIPPED


def test_a_caller_may_change_what_it_got() -> None:
    schemas()["terminal"].clear()
    assert schemas()["terminal"]
