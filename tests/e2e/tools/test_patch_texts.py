"""V4A patches as models write them, applied by the tool in a real slot."""

from __future__ import annotations

from hermes_exec.slot.slot import Slot
from hermes_exec.tools import Toolbox
from tests.support.patch_texts import FILES, TEXTS


async def read_files(slot: Slot) -> dict[str, str]:
    return {entry.name: await slot.files.read_text(entry.path) for entry in await slot.files.list(".")}


async def test_patch_tool_applies_or_refuses_texts(toolbox: Toolbox, slot: Slot) -> None:
    for row in TEXTS:
        for path in await read_files(slot):
            await slot.files.remove(path)
        for path, content in FILES.items():
            await slot.files.write_text(path, content)
        result = await toolbox.call("patch", {"mode": "patch", "patch": row.text})
        files = {path: content for path, content in {**FILES, **(row.changes or {})}.items() if content is not None}
        assert await read_files(slot) == files, row.name
        assert result.ok == (row.changes is not None), (row.name, result.content)
        if not result.ok:
            assert result.error_kind == "bad_patch", row.name
            assert row.reason in str(result.data["error"]), row.name
