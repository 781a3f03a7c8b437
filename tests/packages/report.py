"""What a suite said of its tests: the JUnit report of pytest, by the names that pytest takes again."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import NamedTuple


class Case(NamedTuple):
    """The verdict on one test (passed, failed or skipped), and the first line of its reason."""

    verdict: str
    reason: str


Report = dict[str, Case]
"""Verdicts by the test's node id."""


def parsed(text: str) -> Report:
    """Read a report of the family xunit1, which names the files."""
    report = {}
    for case in ET.fromstring(text).iter("testcase"):
        told = {child.tag: child.get("message") or "" for child in case}
        failed, skipped = told.keys() & {"failure", "error"}, "skipped" in told
        verdict = "failed" if failed else "skipped" if skipped else "passed"
        lines = " ".join(told.values()).splitlines()
        report[node(case)] = Case(verdict, lines[0] if lines and verdict != "passed" else "")
    return report


def node(case: ET.Element) -> str:
    """`tests/test_a.py::Class::test[parameter]`."""
    file, name = case.get("file") or "", case.get("name") or ""
    module = file.removesuffix(".py").replace("/", ".")
    classes = (case.get("classname") or "").removeprefix(module).strip(".")
    return "::".join([file, *classes.split("."), name] if classes else [file, name])
