"""Runs in a slot: runs pytest on one file and writes the outcome of each test as JSON.

The token that marks the result is passed on stdin, so that processes started by the tests cannot find it in arguments
or variables.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Run `sys.argv[2:]` with the pytest in the archive `sys.argv[1]` (empty: the interpreter's own pytest)."""
    archive, test, directory = sys.argv[1:4]
    token = sys.stdin.readline().strip()
    nothing = os.open(os.devnull, os.O_RDWR)
    answer = os.dup(1)  # not inherited by processes that the tests start
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    if archive:
        sys.path.insert(0, archive)
    try:
        import pytest
    except ImportError as error:
        os.write(answer, f"{token} {json.dumps({'missing': str(error)})}\n".encode())
        return

    class Reports:
        """A pytest plugin that records the outcome of each test."""

        def __init__(self) -> None:
            self.collected: list[str] = []
            self.outcomes: dict[str, str] = {}
            self.errors: list[str] = []

        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            """Record the collected tests."""
            self.collected.extend(item.nodeid for item in items)

        def pytest_internalerror(self, excrepr: object) -> None:
            """Record an internal error of pytest."""
            self.errors.append(str(excrepr)[-2000:])

        def pytest_collectreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
            """Record collection errors."""
            if report.failed:
                self.errors.append(str(report.longrepr)[-2000:])

        def pytest_runtest_logreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
            """Record the outcome of one phase of a test. The worst phase counts."""
            previous = self.outcomes.get(report.nodeid)
            outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
            if report.when == "call" or outcome != "passed":
                self.outcomes[report.nodeid] = outcome if previous in (None, "passed") else previous
            if report.failed:
                self.errors.append(str(report.longrepr)[-2000:])

    reports = Reports()
    options = ["-c", os.path.join(directory, "pytest.ini"), "--rootdir", directory, "--noconftest", "--color=no"]
    options += ["-p", "no:cacheprovider", "--import-mode=importlib", test]
    code = int(pytest.main(options, plugins=[reports]))
    results = {"code": code, "collected": reports.collected, "outcomes": reports.outcomes, "errors": reports.errors[:5]}
    os.write(answer, f"{token} {json.dumps(results)}\n".encode())


if __name__ == "__main__":
    main()
