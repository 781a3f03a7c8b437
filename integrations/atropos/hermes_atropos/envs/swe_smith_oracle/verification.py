"""The driver's side of the verifier: runs it in a slot and reads its report."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes_exec import Slot
from hermes_exec.results import RunResult

VERIFIER = Path(__file__).with_name("verifier.py")
VERIFIER_PATH = "check/verifier.py"
"""The path of the verifier, relative to the work directory of a slot."""
CHUNK = 50
_REPORT_BYTES = 8 << 20
_OUTPUT_CHARS = 500


@dataclass(frozen=True)
class VerifierReport:
    """The outcomes of a test run and the end of its output (`printed`). If `complete` is False, the verifier sent no
    report because of `why`, and the outcomes come from earlier chunks.
    """

    outcomes: Mapping[str, str]
    messages: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True
    why: str = ""
    seconds: float = 0.0
    printed: str = ""

    def list_failed(self, expected: Sequence[str]) -> list[str]:
        """Return the expected tests that did not pass: failed, skipped or missing ones."""
        return [test for test in expected if self.outcomes.get(test) != "passed"]


async def run_tests(
    slot: Slot,
    python: Sequence[str],
    tests: Sequence[str] | None,
    *,
    timeout_s: float,
    arguments: Sequence[str] = (),
    run_all: bool = False,
) -> VerifierReport:
    """Run tests (None: all tests) in chunks of 50, in `repo` below the slot's work directory.

    Stop after the first chunk with a test that did not pass, unless `run_all` is set. `timeout_s` applies to the whole
    run.

    Raises:
        ExecError: If the slot is lost.
    """
    started = time.monotonic()
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    printed = ""
    chunks = [None] if tests is None else [tests[n : n + CHUNK] for n in range(0, len(tests), CHUNK)]
    for chunk in chunks:
        left_s = timeout_s - (time.monotonic() - started)
        done = await _run_chunk(slot, python, chunk, max(0.1, left_s), arguments)
        seconds = time.monotonic() - started
        if isinstance(done, str):
            return VerifierReport(outcomes, messages, complete=False, why=done, seconds=seconds)
        outcomes |= done.outcomes
        messages |= done.messages
        printed = done.printed
        if chunk is not None and done.list_failed(chunk) and not run_all:
            break
    return VerifierReport(outcomes, messages, seconds=time.monotonic() - started, printed=printed)


async def _run_chunk(
    slot: Slot, python: Sequence[str], chunk: Sequence[str] | None, timeout_s: float, arguments: Sequence[str]
) -> VerifierReport | str:
    nonce = secrets.token_hex(16)
    request = {"nonce": nonce, "root": "repo", "tests": chunk, "arguments": list(arguments)}
    result = await slot.run(
        [*python, "-I", VERIFIER_PATH],
        stdin=json.dumps(request),
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout_s=timeout_s,
        output_limit_bytes=_REPORT_BYTES,
    )
    return read_report(result, nonce)


def read_report(result: RunResult, nonce: str) -> VerifierReport | str:
    """Return the report of a verifier run, or the reason why there is none. A report counts only if it has the nonce
    and the verifier exited by itself.
    """
    if result.timed_out:
        return f"the tests exceeded their time limit; they printed: {result.stderr[-_OUTPUT_CHARS:]}"
    if result.exit_code != 0 or result.stdout_dropped_bytes:
        return f"the tests ended with exit code {result.exit_code}; they printed: {result.stderr[-_OUTPUT_CHARS:]}"
    try:
        report = json.loads(result.stdout_bytes)
        report_nonce = report["nonce"]
        outcomes = {str(test): str(outcome) for test, outcome in report["outcomes"].items()}
        messages = {str(test): str(text) for test, text in report["messages"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"the verifier ended without a report; the tests printed: {result.stderr[-_OUTPUT_CHARS:]}"
    if report_nonce != nonce:
        return "the report does not have the nonce of its request"
    return VerifierReport(outcomes, messages, printed=result.stderr[-_OUTPUT_CHARS:].strip())
