"""Runs tests in a slot and tells what became of each: put into the slot as it is, and run by its Python with -I.

Reads a request from standard input: `nonce`, `root` (the directory of the tests), `tests` (their ids; None: all that
there are), `arguments` of pytest. Writes one line of JSON to standard output: `nonce`, `exit` of pytest, `outcomes`
(test id to passed, failed, skipped) and `messages` of those that failed. What tests print goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the verifier imports pytest when its standard output is safe
    import pytest

_MESSAGE_CHARS = 300


class Outcomes:
    """A plugin of pytest that keeps what became of each test, and leaves out those that were not asked for."""

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self.wanted = wanted
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that were asked for."""
        if self.wanted is not None:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.wanted])
            items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a phase of a test ended: one that failed in any phase has failed."""
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
        with contextlib.suppress(Exception):  # tests may have put anything in their place
            stream.flush()
    os._exit(0)  # threads that tests left do not keep this from its end


if __name__ == "__main__":
    main()
