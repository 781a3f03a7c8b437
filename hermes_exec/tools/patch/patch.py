"""The patch tool: replaces a piece of text in one file, or applies a V4A patch to several files."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio.to_thread

from hermes_exec.tools.call.failure import ToolFailure
from hermes_exec.tools.call.os_errors import translate_os_errors
from hermes_exec.tools.call.results import CallOutcome
from hermes_exec.tools.files.lint import syntax_note_of_bytes
from hermes_exec.tools.patch import edits
from hermes_exec.tools.patch.commit import FileChange, PatchPlan, commit
from hermes_exec.tools.patch.diff import file_diff
from hermes_exec.tools.patch.planning import decode_text, make_plan, read_existing
from hermes_exec.tools.patch.v4a import parse
from hermes_exec.tools.state.file_views import fingerprint_of
from hermes_exec.tools.state.tool_state import ToolState

_STALE_WARNING = "The file was changed by someone else since you last read it."


async def patch(state: ToolState, arguments: dict[str, Any]) -> CallOutcome:
    """Execute one call. Everything is read, matched and validated before the first write."""
    if arguments["mode"] == "patch":
        text = arguments.get("patch")
        if not text:
            raise ToolFailure(
                "missing_argument", "mode='patch' needs the argument 'patch' with the V4A text.", success=False
            )
        return await _count_failures(state, "the patch", _patch(state, text))
    for name in ("path", "old_string", "new_string"):
        if arguments.get(name) is None:
            hint = " To apply V4A text, call with mode='patch'." if arguments.get("patch") else ""
            raise ToolFailure("missing_argument", f"mode='replace' needs the argument '{name}'.{hint}", success=False)
    return await _count_failures(state, arguments["path"], _replace(state, arguments))


async def _count_failures(state: ToolState, subject: str, work: Awaitable[CallOutcome]) -> CallOutcome:
    """Count failures per subject, so that a model that retries in a circle is asked to stop."""
    try:
        outcome = await work
    except ToolFailure as failure:
        count = state.failed_patches[subject] = state.failed_patches.get(subject, 0) + 1
        failure.fields["success"] = False
        if count >= 3:
            failure.fields["_hint"] = (
                f"This is failure #{count} patching {subject}. Stop retrying with variations: read the file again, "
                "use a longer piece of it with its "
                "surrounding lines, or replace the whole file with write_file."
            )
        elif failure.kind == "no_match":
            failure.fields["_hint"] = "Use read_file to see the current content, or search_files to find the text."
        raise
    state.failed_patches.pop(subject, None)
    return outcome


async def _replace(state: ToolState, arguments: dict[str, Any]) -> CallOutcome:
    display_path = arguments["path"]
    path = state.resolve(display_path)
    async with state.write_lock:
        before = await read_existing(state, path, display_path)
        file = decode_text(before, display_path)
        after, strategy, count = await anyio.to_thread.run_sync(
            lambda: edits.replace(
                file,
                arguments["old_string"],
                arguments["new_string"],
                replace_all=arguments["replace_all"],
                similar=state.options.similarity_patch,
            )
        )
        if after == before:
            raise ToolFailure("no_change", f"The change leaves {display_path} as it is.")
        stale = state.views.has_changed(path, fingerprint_of(before))
        with translate_os_errors(display_path):
            await state.slot.files.write_bytes(path, after)
    state.views.record(path, fingerprint_of(after))
    data: dict[str, object] = {
        "success": True,
        "diff": await anyio.to_thread.run_sync(file_diff, display_path, before, after),
        "files_modified": [path],
        "strategy": strategy,
    }
    if count > 1:
        data["replacements"] = count
    note = await anyio.to_thread.run_sync(syntax_note_of_bytes, path, after)
    if note is not None:
        data["lint"] = note
    data["resolved_path"] = path
    if stale:
        data["_warning"] = _STALE_WARNING
    return CallOutcome(data)


async def _patch(state: ToolState, text: str) -> CallOutcome:
    operations = parse(text)
    async with state.write_lock:
        plan = await make_plan(state, operations)
        stale = [
            change.display_path
            for change in plan.changes
            if change.before is not None and state.views.has_changed(change.path, fingerprint_of(change.before))
        ]
        await commit(state.slot, plan)
    return CallOutcome(await _report(state, plan, stale))


async def _report(state: ToolState, plan: PatchPlan, stale: list[str]) -> dict[str, object]:
    modified: list[str] = []
    created: list[str] = []
    deleted: list[str] = []
    for change in plan.changes:
        if change.after is None:
            deleted.append(change.path)
            state.views.forget(change.path)
            continue
        (created if change.before is None else modified).append(change.path)
        state.views.record(change.path, fingerprint_of(change.after))
    diff, notes = await anyio.to_thread.run_sync(_diff_and_notes, plan)
    data: dict[str, object] = {"success": True, "diff": diff}
    paths = {"files_modified": modified, "files_created": created, "files_deleted": deleted}
    data |= {name: listed for name, listed in paths.items() if listed}
    if plan.strategies:
        data["strategies"] = plan.strategies
    if notes:
        data["lint"] = notes
    if stale:
        data["_warning"] = f"Changed by someone else since you last read them: {', '.join(stale)}."
    return data


def _diff_and_notes(plan: PatchPlan) -> tuple[str, dict[str, object]]:
    """Return the diff of all changes, and the syntax notes on the written files."""
    notes: dict[str, object] = {}
    for change in plan.changes:
        if change.after is None or change.after == change.moved_content:
            continue
        note = syntax_note_of_bytes(change.path, change.after)
        if note is not None:
            notes[change.display_path] = note
    return "".join(_diff(change) for change in plan.changes), notes


def _diff(change: FileChange) -> str:
    if change.moved_from is not None:
        moved = f"rename from {change.moved_from}\nrename to {change.display_path}\n"
        return moved + file_diff(change.display_path, change.moved_content, change.after)
    if change.moved_away and change.after is None:
        return ""
    return file_diff(change.display_path, change.before, change.after)
