"""Instances of repositories that are cloned, wheels from the network, several processes, and the generator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from hermes_agent import CheckFailed
from hermes_atropos.cli import swe_smith
from hermes_atropos.envs.swe_smith_oracle.instance import Instance, read_instance
from hermes_atropos.envs.swe_smith_oracle.workspace import PreparationSettings, Workspaces, fill_slot, judge
from hermes_exec import SandboxPool
from tests.conftest import ROOT
from tests.e2e.atropos.swe.agents import of, rollout, solution, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400)]

PROJECT = """
[build-system]
requires = ["setuptools>=64", "setuptools-scm>=8"]
build-backend = "setuptools.build_meta"
[project]
name = "adder"
dynamic = ["version"]
dependencies = ["inflection"]
[tool.setuptools_scm]
[tool.pytest.ini_options]
addopts = "--no-such-option-of-pytest -n 4"
python_functions = ["check_*"]
"""
SOURCE = "import inflection\n\ndef add(a, b):\n    return a + b\n"
TESTS = """
import subprocess, sys
import pytest
from adder.it import add, inflection

@pytest.mark.parametrize("x", ["a b", "$x", "`touch /tmp/hit`", "'; exit 0; '", "a::b", "[", "]", "--help", "é"])
def check_odd(x):
    assert add(2, 1) == 3

def check_other():
    assert inflection.pluralize("post") == "posts"
    code = "import adder.it, pytest; print(pytest.__file__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/")
    assert "venv" in done.stdout
"""


@pytest.fixture
def cloned(tmp_path: Path) -> tuple[Instance, str]:
    """An instance of a repository with a src layout, a version from its history and test ids of all kinds."""
    repo = tmp_path / "origin" / "o" / "adder"
    files = {
        "pyproject.toml": PROJECT,
        "src/adder/__init__.py": "",
        "src/adder/it.py": SOURCE,
        "checks/check_it.py": TESTS,
    }
    for name, text in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    own = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "v1.0"]):
        subprocess.run([*own, *command], check=True)
    commit = subprocess.run([*own, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    odd = ["a b", "$x", "`touch /tmp/hit`", "'; exit 0; '", "a::b", "[", "]", "--help", r"\xe9"]
    instance = Instance(
        instance_id="o__adder.1",
        repo="o/adder",
        base_commit=commit,
        problem_statement="`add` is wrong.",
        fail_to_pass=tuple(f"checks/check_it.py::check_odd[{x}]" for x in odd),
        pass_to_pass=("checks/check_it.py::check_other",),
        patch="--- a/src/adder/it.py\n+++ b/src/adder/it.py\n@@ -3,2 +3,2 @@\n def add(a, b):\n"
        "-    return a + b\n+    return a - b\n",
    )
    return instance, (tmp_path / "origin").as_uri()


@pytest.mark.whole
@pytest.mark.parametrize("wheels", ["offline", "online"])
async def test_a_cloned_repository(tmp_path: Path, cloned: tuple[Instance, str], wheels: str) -> None:
    instance, url = cloned
    settings = PreparationSettings(tmp_path / "cache", url, wheels)  # type: ignore[arg-type]
    async with SandboxPool("local") as pool:
        prepared = await Workspaces(pool, settings).prepare(instance)
        assert prepared.keep == ("repo/src/adder/__init__.py", "repo/src/adder/it.py")
        assert (await rollout(pool, prepared, solution(prepared))).reward == 1.0
        null = await rollout(pool, prepared, [terminal("../venv/bin/python -m pytest -o addopts= checks/check_it.py")])
        assert null.reward == 0.0
        assert null.episode is not None
        assert "9 failed, 1 passed" in null.episode.tool_calls[0].content


async def test_chunks_of_all_tests_are_demanded(tmp_path: Path) -> None:
    """That only the last of several chunks fails, and that a test is missing, is seen."""
    async with SandboxPool("local") as pool:
        prepared = await Workspaces(pool, PreparationSettings()).prepare(of("inflection"))
        async with pool.slot() as slot:
            await fill_slot(slot, prepared, solved=True)
            tests = prepared.instance.tests
            assert len(tests) > 100
            assert (await judge(slot, prepared, tests)).reward == 1.0
            assert (await judge(slot, prepared, (*tests, "test_inflection.py::test_of_another"))).reward == 0.0
            await slot.files.remove("check/verifier.py")
            with pytest.raises(CheckFailed):
                await slot.files.remove("venv", recursive=True)
                broken = type(prepared)(prepared.instance, prepared.trees, tmp_path, prepared.settings)
                await judge(slot, broken, tests)


def test_two_processes_prepare_one_instance_at_the_same_time(tmp_path: Path, cloned: tuple[Instance, str]) -> None:
    instance, url = cloned
    code = f"""
import json, sys, anyio
from pathlib import Path
sys.path[:0] = {[str(ROOT), str(ROOT / "integrations" / "atropos")]!r}
from hermes_atropos.envs.swe_smith_oracle.instance import read_instance
from hermes_atropos.envs.swe_smith_oracle.workspace import PreparationSettings, Workspaces
from hermes_exec import SandboxPool
async def main():
    async with SandboxPool("local") as pool:
        made = await Workspaces(pool, PreparationSettings(Path({str(tmp_path / "cache")!r}), {url!r})).prepare(
            read_instance(json.loads(sys.stdin.read()))
        )
        print(made.trees.start, made.venv)
anyio.run(main)
"""
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for one in both:
        assert one.stdin is not None
        one.stdin.write(json.dumps(instance.row()))
        one.stdin.close()
        one.stdin = None
    told = [one.communicate(timeout=200)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert told[0] == told[1]
    assert not list((tmp_path / "cache").rglob("*.new"))


@pytest.mark.whole
def test_the_generator_makes_what_holds(tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        arguments = ["inflection==0.5.1", "--out", str(tmp_path / f"{name}.jsonl"), "--count", "1", "--seed", "5"]
        done = CliRunner().invoke(swe_smith.app, arguments)
        assert done.exit_code == 0, done.output
        runs.append((tmp_path / f"{name}.jsonl").read_text("utf-8"))
    assert runs[0] == runs[1]
    (instance,) = (read_instance(json.loads(line)) for line in runs[0].splitlines())
    assert instance.sdist is not None
    assert len(instance.fail_to_pass) * 5 <= len(instance.tests)
    changed = [line[1:].strip() for line in instance.patch.splitlines() if line[:2] in ("+ ", "- ")]
    assert not [line for line in changed if line in instance.problem_statement]

    async def check_patch() -> None:
        async with SandboxPool("local") as pool:
            prepared = await Workspaces(pool, PreparationSettings()).prepare(instance)
            assert (await rollout(pool, prepared, solution(prepared, "patch"))).reward == 1.0

    anyio.run(check_patch)


def test_the_generator_says_what_it_cannot_have(tmp_path: Path) -> None:
    for package, words in (("inflection", "NAME==VERSION"), ("inflection==0.0.0", "lists no source distribution")):
        done = CliRunner().invoke(swe_smith.app, [package, "--out", str(tmp_path / "x.jsonl")])
        assert done.exit_code == 1
        assert words in done.output.replace("\n", " ")
