"""Agents of known skill, and their rollouts: what the environment does with an instance, without a server."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from hermes_agent import Completion, Episode, Rollout, RolloutResult, Scoring, ScriptedModel, Verdict
from hermes_agent.models.scripted import call
from hermes_atropos.datasets import data_directory, load_dataset_rows
from hermes_atropos.envs.swe_smith_oracle.instance import Instance, read_instance
from hermes_atropos.envs.swe_smith_oracle.workspace import REPO, PreparedInstance, judge
from hermes_exec import SandboxPool, Slot

Action = tuple[str, Mapping[str, object]]
TOOLS = ("terminal", "write_file", "patch")


def instances() -> list[Instance]:
    """All that are shipped."""
    return [read_instance(row) for row in load_dataset_rows(str(data_directory("swe_smith_oracle")))]


def of(package: str) -> Instance:
    """The instance of a package with the fewest tests to mend."""
    of_it = [one for one in instances() if one.sdist is not None and one.sdist.name == package]
    return min(of_it, key=lambda one: len(one.fail_to_pass))


def terminal(command: str) -> Action:
    return "terminal", {"command": command}


def solution(prepared: PreparedInstance, tool: str = "terminal") -> list[Action]:
    """The calls that mend the bug, by one of the tools."""
    if tool == "terminal":
        patch = prepared.instance.patch
        return [terminal(f"printf %s {shlex.quote(patch)} > /tmp/gold.diff && git apply -R /tmp/gold.diff")]
    actions: list[Action] = []
    for name in prepared.trees.solution_paths:
        new, old = ((tree / name).read_text("utf-8") for tree in (prepared.trees.solution, prepared.trees.start))
        if tool == "write_file":
            actions.append((tool, {"path": name, "content": new}))
        else:
            before, after = changed_block(old, new)
            actions.append((tool, {"mode": "replace", "path": name, "old_string": before, "new_string": after}))
    return actions


def changed_block(old: str, new: str) -> tuple[str, str]:
    """The lines that differ, with as many around as make the old ones unique."""
    was, is_now = old.splitlines(keepends=True), new.splitlines(keepends=True)
    changes = [c for c in difflib.SequenceMatcher(None, was, is_now, autojunk=False).get_opcodes() if c[0] != "equal"]
    first, last = changes[0], changes[-1]
    for around in range(1, len(was)):
        low = max(0, first[1] - around)
        block = "".join(was[low : last[2] + around])
        if old.count(block) == 1:
            return block, "".join(is_now[low : last[4] + around])
    return old, new


def model(actions: Sequence[Action]) -> ScriptedModel:
    turns = [Completion("", (call(name, arguments),)) for name, arguments in actions]
    return ScriptedModel([*turns, "done"])


async def rollout(pool: SandboxPool, prepared: PreparedInstance, actions: Sequence[Action]) -> RolloutResult:
    """What the base class of environments does with what `sandbox_spec` and the hooks give."""

    async def prepare(slot: Slot) -> None:
        (await slot.run(prepared.setup_command, timeout_s=60)).check()

    async def check(slot: Slot, episode: Episode) -> Verdict:
        return await judge(slot, prepared, prepared.instance.tests)

    scoring = Scoring(check=check, keep=prepared.keep, files=prepared.check_files)
    task = Rollout(
        messages="Mend it.",
        files=prepared.files,
        prepare=prepare,
        cwd=REPO,
        toolsets=["terminal", "file"],
        scoring=scoring,
    )
    return await task.run(pool, model(actions))


def source_of(prepared: PreparedInstance) -> str:
    """The file that the bug is in, below the repository."""
    return prepared.trees.solution_paths[0]


def prepended(prepared: PreparedInstance, code: str) -> Action:
    """Put code at the beginning of the file that the bug is in."""
    old = Path(prepared.trees.start / source_of(prepared)).read_text("utf-8")
    future = "from __future__ import annotations\n"
    if future in old:
        old = old.replace(future, "", 1)
        code = future + code
    return "write_file", {"path": source_of(prepared), "content": f"{code}\n{old}"}
