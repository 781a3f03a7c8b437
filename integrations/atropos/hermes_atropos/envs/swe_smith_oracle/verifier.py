"""Runs tests in a slot and reports the outcome of each. The file is copied into the slot and run by its Python with -I.

Reads a request from standard input: `nonce`, `root` (the directory of the tests), `tests` (their ids; None: all tests)
and `arguments` for pytest. Writes one line of JSON to standard output: `nonce`, `exit` of pytest, `outcomes` (test id
to passed, failed or skipped) and `messages` of the failed tests. Output of the tests goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the verifier imports pytest only after it has secured its standard output
    import pytest

_MESSAGE_CHARS = 300


class Outcomes:
    """A pytest plugin that records the outcome of each test and deselects tests that were not requested."""

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self.wanted = wanted
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep only the requested tests."""
        if self.wanted is not None:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.wanted])
            items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of one phase of a test. A test fails if any phase fails."""
        before = self.outcomes.get(report.nodeid)
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
            crash = getattr(report.longrepr, "reprcrash", None)
            self.messages[report.nodeid] = str(getattr(crash, "message", ""))[:_MESSAGE_CHARS]
        elif before != "failed" and (report.when == "call" or report.skipped):
            self.outcomes[report.nodeid] = str(report.outcome)


def main() -> None:
    """Answer the request."""
    answer = os.dup(1)  # not inherited by programs that tests start
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.dont_write_bytecode = True
    os.chdir(request["root"])
    import pytest

    tests = request["tests"]
    plugin = Outcomes(None if tests is None else frozenset(tests))
    files = [] if tests is None else sorted({test.partition("::")[0] for test in tests})
    settings = [
        "--rootdir=.",
        "--override-ini=addopts=",
        "-p",
        "no:cacheprovider",
        "--quiet",
        "--no-header",
        "--tb=short",
    ]
    code = pytest.main([*settings, *request["arguments"], "--", *files], plugins=[plugin])
    report = {
        "nonce": request["nonce"],
        "exit": int(code),
        "outcomes": plugin.outcomes,
        "messages": plugin.messages,
    }
    data = json.dumps(report).encode() + b"\n"
    while data:
        data = data[os.write(answer, data) :]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # tests may have replaced them with anything
            stream.flush()
    os._exit(0)  # does not wait for threads that the tests started


if __name__ == "__main__":
    main()
