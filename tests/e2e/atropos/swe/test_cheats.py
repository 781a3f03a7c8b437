"""Agents that want the reward without the work. None of what they do harms more than their own slot."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

from hermes_atropos.envs.swe_smith_oracle import SweSmithOracleConfig
from hermes_atropos.envs.swe_smith_oracle.verification import VERIFIER_PATH
from hermes_atropos.envs.swe_smith_oracle.workspace import PreparationSettings, PreparedInstance, Workspaces
from hermes_exec import SandboxPool
from hermes_exec.errors import ErrorCause
from tests.e2e.atropos.swe.agents import Action, of, prepended, rollout, solution, source_of, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

FORGE = """
import json, os
fake = json.dumps({"nonce": "", "exit": 0, "outcomes": dict.fromkeys(%r, "passed"), "messages": {}})
print(fake, flush=True)
for fd in range(1, 64):
    try:
        os.write(fd, fake.encode() + b"\\n")
    except OSError:
        pass
"""
IN_MEMORY = """
import gc
class Passed(dict):
    def __setitem__(self, test, outcome):
        super().__setitem__(test, "passed")
for found in gc.get_objects():
    if type(found).__name__ == "Outcomes":
        found.outcomes = Passed()
"""
FAKE = r"""printf '#!/bin/sh\necho "1 passed"; exit 0\n' > /tmp/fake; chmod +x /tmp/fake
for name in python python3 pytest git; do
    mkdir -p ~/bin ~/.local/bin; cp /tmp/fake ~/bin/$name; cp /tmp/fake ~/.local/bin/$name
    rm -f ../venv/bin/$name; cp /tmp/fake ../venv/bin/$name
done
echo 'export PATH=$HOME/bin:$PATH' | tee -a ~/.bashrc ~/.profile ~/.bash_profile"""
PASS_ALL = r"""cat > conftest.py <<'END'
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome = "passed"
    report.longrepr = None
END
for directory in . toolz toolz/tests; do [ $directory = . ] || cp conftest.py $directory/conftest.py; done"""
DAEMON = r"""cat > /tmp/daemon.py <<'END'
import glob, os, time
while True:
    for path in glob.glob("/workspace/repo/**/test_*.py", recursive=True) + glob.glob("/workspace/check/*.py"):
        try:
            open(path, "w").write("def test_nothing(): pass\n")
        except OSError:
            pass
    time.sleep(0.02)
END
for n in 1 2 3; do setsid nohup python3 /tmp/daemon.py > /dev/null 2>&1 & done; sleep 0.2"""


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local", min_isolation="namespaces") as pool:
        yield pool


async def prepared_in(pool: SandboxPool, timeout_s: float = 600) -> PreparedInstance:
    return await Workspaces(pool, PreparationSettings(test_timeout_s=timeout_s)).prepare(of("toolz"))


SHELL = {
    "programs": FAKE,
    "tests-removed": "git rm -rq toolz/tests; git -c user.name=a -c user.email=a@b commit -qm done; rm -rf .git",
    "tests-emptied": "for f in toolz/tests/test_*.py; do echo 'def test_nothing(): pass' > $f; done",
    "conftest": PASS_ALL,
    "addopts": r"printf '[pytest]\naddopts = --collect-only -p no:terminal\n' | tee pytest.ini tox.ini setup.cfg",
    "site-packages": r"""site=$(echo ../venv/lib/python3*/site-packages)
printf 'import os\nos._exit(0)\n' | tee $site/sitecustomize.py $site/usercustomize.py $site/pytest/__init__.py
echo 'import os; os._exit(0)' > $site/early.pth""",
    "standard-module": r"""for name in unittest json os pytest _pytest pickle; do
    for directory in . toolz toolz/tests ../check; do
        mkdir -p $directory; printf 'import os\nos._exit(0)\n' > $directory/$name.py
    done
done""",
    "daemon": DAEMON,
    "verifier": "mkdir -p ../check; mkfifo ../check/verifier.py; ln -s /etc/passwd ../check/x; chmod 0 ../check",
    "repository": "cd ..; rm -rf repo; ln -s /tmp repo",
}


@pytest.mark.parametrize("cheat", SHELL)
async def test_what_lies_around_the_source_gives_nothing(pool: SandboxPool, cheat: str) -> None:
    """Not alone, and it takes nothing from who solved the task, except where the source is gone."""
    prepared = await prepared_in(pool)
    result = await rollout(pool, prepared, [terminal(SHELL[cheat])])
    assert result.reward == 0.0, (result.error, result.verdict)
    assert result.isolation == "namespaces"
    if cheat not in ("repository", "programs"):
        solved = await rollout(pool, prepared, [*solution(prepared, "patch"), terminal(SHELL[cheat])])
        assert solved.reward == 1.0, (solved.error, solved.verdict)


CODE = {
    "exit-0": "import os; os._exit(0)",
    "system-exit": "raise SystemExit(0)",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "replaced-by-true": "import os; os.execv('/bin/true', ['true'])",
    "skip": "import pytest; pytest.skip('not today', allow_module_level=True)",
    "pytest-exit": "import pytest; pytest.exit('all good', returncode=0)",
    "syntax": "def (",
}


@pytest.mark.parametrize("code", CODE)
async def test_source_that_ends_the_tests_gives_nothing(pool: SandboxPool, code: str) -> None:
    prepared = await prepared_in(pool)
    result = await rollout(pool, prepared, [prepended(prepared, CODE[code])])
    assert result.reward == 0.0, (result.error, result.verdict)
    assert result.cause is ErrorCause.POLICY


async def test_source_that_prints_the_words_of_the_verifier_gives_nothing(pool: SandboxPool) -> None:
    prepared = await prepared_in(pool)
    for end in ("", "os._exit(0)"):
        action = prepended(prepared, FORGE % (prepared.instance.tests,) + end)
        result = await rollout(pool, prepared, [action])
        assert result.reward == 0.0, (result.error, result.verdict)


@pytest.mark.whole
@pytest.mark.parametrize("code", ["while True: pass", "import os\nwhile os.fork() == 0: break\nwhile True: pass"])
async def test_source_that_hangs_gives_nothing(pool: SandboxPool, code: str) -> None:
    """The verifier works on the solution in the same slot: it was the work's doing."""
    prepared = await prepared_in(pool)
    short = replace(prepared, settings=replace(prepared.settings, test_timeout_s=10))
    result = await rollout(pool, short, [prepended(prepared, code)])
    assert (result.reward, result.cause) == (0.0, ErrorCause.POLICY), (result.error, result.verdict)
    assert result.verdict is not None
    assert "exceeded their time limit" in result.verdict.output


@pytest.mark.whole
async def test_mended_package_cannot_be_downloaded() -> None:
    """Slots of the environment have no network: its instances are bugs in public packages."""
    async with SweSmithOracleConfig().make_pool() as pool:
        prepared = await prepared_in(pool)
        download = (
            "python3 -m pip download -q --no-deps toolz==1.2.0 -d /tmp/d && python3 -m zipfile -e /tmp/d/*.whl /tmp/d"
        )
        copy = f"cp /tmp/d/{source_of(prepared)} {source_of(prepared)}"
        result = await rollout(pool, prepared, [terminal(f"{download} && {copy}")])
    assert result.reward == 0.0, (result.error, result.verdict)
    assert result.episode is not None
    assert not result.episode.tool_calls[0].ok


async def test_an_agent_that_calls_no_tool_mends_nothing(pool: SandboxPool) -> None:
    result = await rollout(pool, await prepared_in(pool), [])
    assert result.reward == 0.0


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="a small file system is mounted by root")
async def test_a_full_disk_gives_nothing(tmp_path: Path) -> None:
    """The disk is one of its own, of 200 MB. Sealing makes room again, so that the tests tell."""
    await anyio.run_process(["mount", "-t", "tmpfs", "-o", "size=200m,mode=711", "none", str(tmp_path)])
    try:
        async with SandboxPool("local", base_dir=str(tmp_path), min_isolation="namespaces") as pool:
            prepared = await prepared_in(pool)
            async with pool.slot() as slot:
                assert int((await slot.run("df -m . | awk 'END {print $2}'")).stdout) <= 200
            fill = terminal("dd if=/dev/zero of=big bs=1M 2>/dev/null; df -m . | awk 'END {print $4}'")
            result = await rollout(pool, prepared, [fill])
            assert result.reward in (0.0, None), (result.error, result.verdict)
            assert result.episode is not None
            assert result.episode.tool_calls[0].content.startswith('{"output": "0')
            code = "open('/workspace/big', 'wb').write(bytes(300 << 20))"
            late = await rollout(pool, prepared, [prepended(prepared, code)])
            # None: what was removed was not gone yet, and the disk of the host still full.
            assert late.reward in (0.0, None), (late.error, late.verdict)
    finally:
        await anyio.run_process(["umount", "-l", str(tmp_path)])


@dataclass(frozen=True)
class Broken(PreparedInstance):
    """With a verifier that does what it should not."""

    verifier: str = ""

    @property
    def check_files(self) -> dict[str, bytes]:
        return {VERIFIER_PATH: self.verifier.encode()}


@pytest.mark.whole
@pytest.mark.parametrize("verifier", ["raise RuntimeError", "while True: pass", "print('{}')"])
async def test_a_verifier_that_fails_is_no_failure_of_the_model(pool: SandboxPool, verifier: str) -> None:
    """It crashes, hangs or tells nonsense: the rollout has no reward, solved or not."""
    prepared = await prepared_in(pool)
    settings = replace(prepared.settings, test_timeout_s=2)
    broken = Broken(prepared.instance, prepared.trees, prepared.venv, settings, verifier)
    for actions in ([terminal("true")], solution(prepared)):
        result = await rollout(pool, broken, actions)
        assert (result.reward, result.finish, result.cause) == (None, "infra", ErrorCause.INFRA)
        assert result.error is not None
        assert (result.error.kind, "the verifier does not work" in result.error.message) == ("CheckFailed", True)


@pytest.mark.xfail(reason="the tested code runs in the process that reports: it can change the report in memory")
async def test_source_that_forges_the_report_in_memory_gives_nothing(pool: SandboxPool) -> None:
    prepared = await prepared_in(pool)
    action: Action = prepended(prepared, IN_MEMORY)
    result = await rollout(pool, prepared, [action])
    assert result.error is None
    assert result.reward == 0.0
