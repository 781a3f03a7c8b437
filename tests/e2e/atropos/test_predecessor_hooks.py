"""An SWE environment in the form of the predecessor: hooks that call `exec_tool("bash", …)`, on a real repository."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hermes_agent import Episode
from hermes_atropos import EnvironmentStopped, ExecTool, SandboxAgentEnv, SandboxSpec
from tests.e2e.atropos.inference_server import PolicyServer, call, load, make_env, process, serving

pytestmark = pytest.mark.anyio
Row = dict[str, Any]
SOURCE = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n"
TESTS = """import time, unittest
from calc import add, double

class Old(unittest.TestCase):
    def test_double(self):
        self.assertEqual(double(3), 6)

class New(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_hang(self):
        time.sleep(60)
"""
FIX = call("terminal", command="cd acme__calc && sed -i 's/a - b/a + b/' calc.py && git diff --stat")
BREAK = call("terminal", command="cd acme__calc && sed -i 's/2 \\* a/3 * a/; s/a - b/a + b/' calc.py")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A row of the dataset: a bundle of a repository, and its commit with the bug. The head has no bug."""
    where = tmp_path_factory.mktemp("repository")
    git = ("git", "-C", str(where), "-c", "user.name=a", "-c", "user.email=a@example.org")

    def commit(source: str) -> str:
        (where / "calc.py").write_text(source)
        subprocess.run([*git, "add", "--all"], check=True)
        subprocess.run([*git, "commit", "-qm", "change"], check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (where / "test_calc.py").write_text(TESTS)
    base = commit(SOURCE)
    commit(SOURCE.replace("a - b", "a + b"))
    subprocess.run([*git, "bundle", "create", "-q", str(where / "calc.bundle"), "main"], check=True)
    return {"repo": "acme/calc", "base_commit": base, "bundle": str(where / "calc.bundle")}


@dataclass
class Hooks:
    """What the hooks of an environment saw."""

    order: list[str] = field(default_factory=list)
    metas: list[dict[str, Any]] = field(default_factory=list)


def swe_env(row: dict[str, Any], hooks: Hooks, chunk_size: int = 1) -> type[Any]:
    """An environment whose items are rows and whose hooks use only what `exec_tool` gives them."""

    class Swe(SandboxAgentEnv[Row]):
        name = "swe"

        async def get_next_item(self) -> Row:
            return {"instance_id": "calc-1", "problem_statement": "add(2, 3) is wrong", **row}

        def format_prompt(self, item: Row) -> str:
            return str(item["problem_statement"])

        def sandbox_spec(self, item: Row) -> SandboxSpec:
            return SandboxSpec(files={"calc.bundle": Path(item["bundle"])})

        def _directory(self, item: Row) -> str:
            return str(item["repo"]).replace("/", "__")

        async def setup_trajectory_workspace(self, item: Row, *, trajectory_id: str, exec_tool: ExecTool) -> Row:
            hooks.order.append("setup")
            name = self._directory(item)
            make = (
                f"[ -d cache/{name}.git ] || git clone -q --bare calc.bundle cache/{name}.git; "
                f"git --git-dir=cache/{name}.git worktree add -f --detach {name} {item['base_commit']}"
            )
            command = f"set -e; mkdir -p cache/.locks; flock -x cache/.locks/{name} sh -ec {shlex.quote(make)}"
            res = await exec_tool("bash", {"command": command}, timeout=600)
            if not res.success:
                raise RuntimeError(f"no worktree of {item['base_commit']} ({res.metadata}): {res.error}\n{res.output}")
            return {"repo_dir": name, "trajectory": trajectory_id, "head": res.error}

        async def verify_and_score_trajectory(
            self,
            item: Row,
            result: Episode,
            *,
            trajectory_id: str,
            exec_tool: ExecTool,
            workspace_meta: Mapping[str, Any],
        ) -> tuple[float, Row]:
            hooks.order.append("verify")
            assert workspace_meta["trajectory"] == trajectory_id
            score, meta = await self._judge(item, result, exec_tool, workspace_meta["repo_dir"])
            hooks.metas.append(meta)
            return score, meta

        async def _judge(self, item: Row, result: Episode, exec_tool: ExecTool, repo_dir: str) -> tuple[float, Row]:
            answers = [msg for msg in result.messages if msg.get("role") == "assistant"]
            if not sum(len(msg.get("tool_calls", [])) for msg in answers):
                return 0.0, {"phase": "agent", "error": "no tool call"}
            install = f"cd {repo_dir} && python3 -m venv --without-pip .venv && . .venv/bin/activate && python -V"
            res = await exec_tool("bash", {"command": install}, timeout=600)
            if not res.success:
                return 0.0, {"phase": "install", "error": res.error, "output": res.output, **res.metadata}
            tests = item["PASS_TO_PASS"] + item["FAIL_TO_PASS"]
            for start in range(0, len(tests), chunk_size):
                chunk = " ".join(tests[start : start + chunk_size])
                command = f"cd {repo_dir} && . .venv/bin/activate && echo chunk {start} && python -m unittest {chunk}"
                res = await exec_tool("bash", {"command": command}, timeout=item.get("test_timeout", 600))
                if not res.success:
                    failed = {"phase": "test", "chunk": start, "error": res.error, "output": res.output}
                    return 0.0, {**failed, **res.metadata}
            return 1.0, {"phase": "done", "passed": len(tests)}

    return Swe


ROW = {"PASS_TO_PASS": ["test_calc.Old.test_double"], "FAIL_TO_PASS": ["test_calc.New.test_add"]}
Rolled = Callable[..., Any]


@pytest.fixture
def roll(tokenizer: Path, tmp_path: Path, repository: dict[str, str]) -> Rolled:
    async def roll(work: str, **changes: Any) -> tuple[list[float], Hooks]:
        """Roll out one group whose model calls a tool and then answers."""
        hooks = Hooks()
        policy = lambda prompt: "done" if "<tool_response>" in prompt else work  # noqa: E731
        with serving(PolicyServer(load(tokenizer), policy)) as server:
            path = str(tmp_path / "groups.jsonl")
            kind = swe_env({**repository, **ROW, **changes}, hooks)
            env = make_env(kind, tokenizer, server.url, data_path_to_save_groups=path, max_rerolls=1)
            (group,) = await process(env, 1)
        return group["scores"], hooks

    return roll


async def test_swe_hooks_score_fixed_repository(roll: Rolled) -> None:
    scores, hooks = await roll(FIX)
    assert scores == [1.0, 1.0]
    assert hooks.metas == [{"phase": "done", "passed": 2}] * 2
    assert sorted(hooks.order) == ["setup", "setup", "verify", "verify"]
    assert hooks.order[0] == "setup"


async def test_swe_hooks_score_broken_repository(roll: Rolled) -> None:
    scores, hooks = await roll(BREAK)
    assert scores == [0.0, 0.0]
    for meta in hooks.metas:
        assert (meta["phase"], meta["chunk"], meta["exit_code"], meta["timeout"]) == ("test", 0, 1, False)
        assert meta["output"] == "chunk 0\n"
        assert "AssertionError: 9 != 6" in meta["error"]


async def test_swe_hooks_score_answer_without_tool_call(roll: Rolled) -> None:
    scores, hooks = await roll("It is fine.")
    assert scores == [0.0, 0.0]
    assert {meta["phase"] for meta in hooks.metas} == {"agent"}


async def test_swe_hooks_see_timeout_of_tests(roll: Rolled) -> None:
    scores, hooks = await roll(FIX, FAIL_TO_PASS=["test_calc.New.test_hang"], test_timeout=5)
    assert scores == [0.0, 0.0]
    for meta in hooks.metas:
        assert (meta["phase"], meta["chunk"], meta["timeout"]) == ("test", 1, True)
        assert "longer than 5 s" in meta["error"]


async def test_swe_setup_that_fails_drops_the_group(roll: Rolled) -> None:
    with pytest.raises(EnvironmentStopped, match="no worktree of 0000000") as caught:
        await roll(FIX, base_commit="0" * 40)
    assert "exit_code" in json.dumps(str(caught.value))
