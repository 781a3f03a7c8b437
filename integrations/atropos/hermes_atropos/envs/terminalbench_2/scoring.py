"""Scoring of a task. Its tests are uploaded after the episode, and its own script writes the reward."""

from __future__ import annotations

import math
import tempfile
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_agent import CheckFailed, Verdict
from hermes_atropos.context import ExecTool
from hermes_atropos.envs.machine_state import find_tampering, score_with_control
from hermes_atropos.envs.terminalbench_2.tasks import TerminalBenchTask, unpack
from hermes_exec import ConfigError, Slot
from hermes_exec.errors import ExecError

TESTS, LOGS = "/tests", "/logs/verifier"
REWARD = f"{LOGS}/reward.txt"
_PROBE = 'path=$(readlink -f "$(command -v bash)") && sha256sum "$path"'
_REWARD_BYTES = 64
_OUTPUT_BYTES = 16_384
_SIGKILL = 9


async def find_shell(exec_tool: ExecTool) -> dict[str, str]:
    """Return the bash of an untouched slot: its path and SHA-256.

    Raises:
        ConfigError: If the image has no bash.
    """
    done = await exec_tool("terminal", {"command": _PROBE})
    digest, _, path = done.output.strip().partition("  ")
    if not done.success or len(digest) != 64 or not path.startswith("/"):
        raise ConfigError(f"the image has no bash, which the tests need ({(done.error or done.output).strip()[-200:]})")
    return {path: digest}


async def score_task(slot: Slot, task: TerminalBenchTask, shell: dict[str, str], timeout_s: float) -> Verdict:
    """Return the reward that `/tests/test.sh` wrote to `/logs/verifier/reward.txt`, else 1.0 if it exited with 0.

    Files of the model in either place are removed first. The reward is 0.0 if the bash was replaced, or if the script
    exceeds `timeout_s` or is killed because of the model's work.

    Raises:
        CheckFailed: If the script fails in the same way without the model's work.
    """
    return await score_with_control(slot, lambda: _score(slot, task, shell, timeout_s))


async def _score(slot: Slot, task: TerminalBenchTask, shell: dict[str, str], timeout_s: float) -> Verdict:
    changed = await find_tampering(slot, shell)
    if changed:
        return Verdict(0.0, solved=False, output=changed)
    try:
        await _put_tests(slot, task)
    except OSError as error:
        if isinstance(error, (ExecError, TimeoutError)):
            raise
        return Verdict(0.0, solved=False, output=f"the tests could not be uploaded: {error}")
    (bash,) = shell
    result = await slot.run(
        [bash, "--noprofile", "--norc", f"{TESTS}/test.sh"],
        timeout_s=timeout_s,
        merge_stderr=True,
        output_limit_bytes=_OUTPUT_BYTES,
    )
    if result.timed_out:
        raise CheckFailed(f"the tests took longer than {timeout_s:g} s; they printed: {result.output[-500:]}")
    if result.signal == _SIGKILL:
        raise CheckFailed(f"the tests were killed; they printed: {result.output[-500:]}")
    # Processes that the tests left behind must not write the reward.
    await slot.kill_all()
    file_reward = await _read_reward(slot)
    reward = float(result.ok) if file_reward is None else file_reward
    return Verdict(reward, solved=reward >= 1.0, exit_code=result.exit_code, output=result.output)


async def _put_tests(slot: Slot, task: TerminalBenchTask) -> None:
    for path in (TESTS, LOGS):
        await _clear(slot, path)
    with tempfile.TemporaryDirectory(prefix="hermes-exec-tests-") as scratch:
        directory = Path(scratch) / "tests"
        await anyio.to_thread.run_sync(_write_tests, task, directory)
        await slot.files.mkdir(LOGS, parents=True, exist_ok=True)
        await slot.files.upload(directory, TESTS)


def _write_tests(task: TerminalBenchTask, directory: Path) -> None:
    where = f"{task.name}: tests_tar"
    if task.tests_tar:
        unpack(task.tests_tar, directory, where)
        inner = directory / "tests"
        if inner.is_dir() and not (directory / "test.sh").exists() and [inner] == list(directory.iterdir()):
            inner.rename(directory.with_name("inner"))
            directory.rmdir()
            directory.with_name("inner").rename(directory)
    else:
        directory.mkdir()
    if task.test_sh:
        script = directory / "test.sh"
        script.unlink(missing_ok=True)
        script.write_text(task.test_sh, "utf-8")
        script.chmod(0o755)
    if not (directory / "test.sh").is_file():
        raise ConfigError(f"{where}: test.sh is missing")


async def _clear(slot: Slot, path: str) -> None:
    """Remove a path. A directory that cannot be removed from the root of the image is emptied instead."""
    try:
        await slot.files.remove(path, recursive=True, missing_ok=True)
    except OSError as error:
        if isinstance(error, (ExecError, TimeoutError)):
            raise
        if not (await slot.files.stat(path, follow=False)).is_dir:
            raise
        for entry in await slot.files.list(path):
            await slot.files.remove(f"{path}/{entry.name}", recursive=True)


async def _read_reward(slot: Slot) -> float | None:
    """Return the number in the reward file, or None if there is no number from 0 to 1."""
    try:
        facts = await slot.files.stat(REWARD, follow=False)
        if not facts.is_file or facts.size > _REWARD_BYTES:
            return None
        text = (await slot.files.read_bytes(REWARD)).decode("utf-8", "replace")
    except OSError as error:
        if isinstance(error, (ExecError, TimeoutError)):
            raise
        return None
    with suppress(ValueError):
        reward = float(text.strip())
        if math.isfinite(reward) and 0 <= reward <= 1:
            return reward
    return None
