"""Scoring of a final state. The task's test is uploaded after the episode and run with a pytest of this host."""

from __future__ import annotations

import io
import json
import secrets
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from hermes_agent import CheckFailed, Verdict
from hermes_atropos.context import ExecTool
from hermes_atropos.envs.machine_state import find_tampering, score_with_control
from hermes_exec import ConfigError, Slot
from hermes_exec.errors import ExecError

_RUNNER = Path(__file__).with_name("run_pytest.py")
_PYTEST_PACKAGES = (
    "pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "exceptiongroup",
    "tomli",
    "typing_extensions",
)
_OLDEST_PYTHON = (3, 10)
"""The oldest Python that this host's pytest supports."""
_LEXERS = ("__init__", "_mapping", "python", "diff")
_PROBE = """
import hashlib, os, sys
path = os.path.realpath(sys.executable)
with open(path, "rb") as program:
    digest = hashlib.sha256(program.read()).hexdigest()
print(path, digest, *sys.version_info[:2])
"""
_OUTCOME_BYTES = 4 << 20
_IMPORT_ERRORS = ("ModuleNotFoundError", "SyntaxError")


class Interpreter(NamedTuple):
    """The Python of an image before the episode."""

    path: str
    digest: str
    version: tuple[int, int]


async def find_interpreter(exec_tool: ExecTool) -> Interpreter:
    """Return the Python of an untouched slot.

    Raises:
        ConfigError: If the image has no Python.
    """
    done = await exec_tool("terminal", {"command": f"python3 -I -c '{_PROBE}'"})
    words = done.output.split()
    if not done.success or len(words) != 4:
        raise ConfigError(
            "the image has no python3, which the test of the final state needs: add it to the definition "
            f"({(done.error or done.output).strip()[-200:]})"
        )
    return Interpreter(words[0], words[1], (int(words[2]), int(words[3])))


async def score_final_state(slot: Slot, test: Path, interpreter: Interpreter, timeout_s: float) -> Verdict:
    """Return 1.0 if every test in the file passes, else 0.0.

    The reward is also 0.0 if the interpreter was replaced, or if the test exceeds `timeout_s` or is killed because of
    the model's work.

    Raises:
        CheckFailed: If the test fails to run without the model's work too, or cannot run in this image.
    """
    return await score_with_control(slot, lambda: _score(slot, test, interpreter, timeout_s))


async def _score(slot: Slot, test: Path, interpreter: Interpreter, timeout_s: float) -> Verdict:
    changed = await find_tampering(slot, {interpreter.path: interpreter.digest})
    if changed:
        return Verdict(0.0, solved=False, output=changed)
    # An unpredictable name.
    directory = f"/tmp/.verify-{secrets.token_hex(8)}"
    use_archive = interpreter.version >= _OLDEST_PYTHON and (interpreter.version >= (3, 11) or _has("exceptiongroup"))
    try:
        await slot.files.mkdir(directory, parents=True)
        await slot.files.upload(test, f"{directory}/{test.name}")
        await slot.files.upload(_RUNNER, f"{directory}/run_pytest.py")
        await slot.files.write_text(f"{directory}/pytest.ini", "[pytest]\n")
        if use_archive:
            await slot.files.write_bytes(f"{directory}/pytest.zip", pytest_archive())
    except OSError as error:
        if isinstance(error, (ExecError, TimeoutError)):
            raise
        return Verdict(0.0, solved=False, output=f"the test could not be uploaded: {error}")
    token = secrets.token_hex(16)
    archive = f"{directory}/pytest.zip" if use_archive else ""
    argv = [interpreter.path, "-I", "-B", f"{directory}/run_pytest.py", archive, f"{directory}/{test.name}", directory]
    result = await slot.run(
        argv,
        stdin=f"{token}\n",
        timeout_s=timeout_s,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        output_limit_bytes=_OUTCOME_BYTES,
    )
    if result.timed_out:
        raise CheckFailed(f"the test took longer than {timeout_s:g} s")
    if result.signal is not None:
        raise CheckFailed(f"the test was killed by signal {result.signal}")
    return _verdict(_outcome(result.stdout, token), result.exit_code, result.stderr, interpreter.version)


def _outcome(stdout: str, token: str) -> dict[str, Any] | None:
    for line in reversed(stdout.splitlines()):
        mark, _, text = line.partition(" ")
        if mark == token:
            outcome = json.loads(text)
            return outcome if isinstance(outcome, dict) else None
    return None


def _verdict(report: dict[str, Any] | None, code: int, stderr: str, version: tuple[int, int]) -> Verdict:
    if report is None:
        # The process ended before it reported, possibly because of code of the model that it imports.
        return Verdict(0.0, solved=False, exit_code=code, output=f"the test ended without a report: {stderr[-1000:]}")
    if "missing" in report:
        python = ".".join(map(str, version))
        raise CheckFailed(
            f"no pytest for the image's Python {python} ({report['missing']}): use Python 3.10 or newer (3.10 needs "
            "the package exceptiongroup on this host), or install pytest in the image"
        )
    collected, outcomes, errors = report["collected"], report["outcomes"], report["errors"]
    message = "\n".join(errors)
    if not collected or report["code"] not in (0, 1):
        if not errors or any(name in message for name in _IMPORT_ERRORS):
            raise CheckFailed(f"the test cannot run (pytest exited with {report['code']}): {message[-1000:]}")
        return Verdict(0.0, solved=False, exit_code=code, output=message)
    passed = [name for name in collected if outcomes.get(name) == "passed"]
    skipped = [name for name in collected if outcomes.get(name) in ("skipped", "xfailed")]
    solved = report["code"] == 0 and bool(passed) and len(passed) + len(skipped) == len(collected)
    output = message or f"{len(passed)} of {len(collected)} passed"
    return Verdict(float(solved), solved=solved, exit_code=code, output=output)


@cache
def pytest_archive() -> bytes:
    """Return this host's pytest and its dependencies as a zip of pure Python."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _PYTEST_PACKAGES:
            for path in metadata.files(name) or () if _has(name) else ():
                lexer = path.parts[:2] == ("pygments", "lexers") and path.stem not in _LEXERS
                wanted = path.suffix == ".py" or path.name == "METADATA"
                if wanted and not lexer and ".." not in path.parts:
                    archive.writestr(str(path), path.read_binary())
    return out.getvalue()


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
