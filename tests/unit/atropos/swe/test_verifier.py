"""The verifier, on real pytest: what it tells of each test, and which answers of it count."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_atropos.envs.swe_smith_oracle.verification import VERIFIER, VerifierReport, read_report
from hermes_exec.results import RunResult

TESTS = """
import sys, pytest, unittest

@pytest.mark.parametrize("x", ["a b", "$x", "`id`", "'; exit 0; '", "é", "a::b", "[", "]"])
def test_odd(x): print("noise on standard output"); sys.stderr.write("and error")

def test_bad(): assert 1 == 2, "no"
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.xfail
def test_expected(): assert False
@pytest.fixture
def broken(): raise OSError("set-up")
def test_set_up(broken): pass
@pytest.fixture
def later():
    yield
    raise OSError("tear-down")
def test_tear_down(later): pass
class TestUnit(unittest.TestCase):
    def test_in(self): self.assertEqual(1, 1)
"""


def verified(tmp_path: Path, tests: list[str] | None) -> dict[str, Any]:
    (tmp_path / "repo").mkdir(exist_ok=True)
    (tmp_path / "repo" / "test_it.py").write_text(TESTS)
    (tmp_path / "repo" / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    request = {"nonce": "n", "root": "repo", "tests": tests, "arguments": []}
    done = subprocess.run(
        [sys.executable, "-I", str(VERIFIER)],
        cwd=tmp_path,
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_every_test_is_told_under_its_id(tmp_path: Path) -> None:
    report = verified(tmp_path, None)
    outcomes = report["outcomes"]
    odd = [test for test in outcomes if "test_odd" in test]
    assert len(odd) == 8
    assert all(outcomes.pop(test) == "passed" for test in odd)
    assert {test.partition("::")[2]: outcome for test, outcome in outcomes.items()} == {
        "test_bad": "failed",
        "test_skipped": "skipped",
        "test_expected": "skipped",
        "test_set_up": "failed",
        "test_tear_down": "failed",
        "TestUnit::test_in": "passed",
    }
    assert "no" in report["messages"]["test_it.py::test_bad"]
    again = verified(tmp_path, odd)
    assert again["outcomes"] == dict.fromkeys(odd, "passed")
    assert not (tmp_path / "repo" / ".pytest_cache").exists()
    assert not list(tmp_path.rglob("__pycache__"))


def test_what_is_asked_for_and_not_there_is_not_told(tmp_path: Path) -> None:
    report = verified(tmp_path, ["test_it.py::test_none", "test_it.py::test_odd[a b]", "test_gone.py::test_a"])
    assert report["outcomes"] == {}
    assert VerifierReport(report["outcomes"]).list_failed(["test_gone.py::test_a"]) == ["test_gone.py::test_a"]


FITS = b'{"nonce": "n", "outcomes": {}, "messages": {}}'


@pytest.mark.parametrize(
    ("data", "more", "words"),
    [
        (FITS, {"timed_out": True}, "exceeded their time limit"),
        (FITS, {"exit_code": 137, "signal": 9}, "ended with exit code 137"),
        (FITS, {"exit_code": 1}, "ended with exit code 1"),
        (FITS, {"stdout_total_bytes": 1 << 30}, "ended with exit code 0"),
        (b"", {}, "ended without a report"),
        (b"[]", {}, "ended without a report"),
        (FITS.replace(b"{}", b"[]"), {}, "ended without a report"),
        (FITS.replace(b'"n"', b'"m"'), {}, "not have the nonce of its request"),
        (FITS + FITS, {}, "ended without a report"),
    ],
)
def test_no_other_report_counts(data: bytes, more: dict[str, Any], words: str) -> None:
    result = replace(RunResult(0, data, stdout_total_bytes=len(data)), **more)
    told = read_report(result, "n")
    assert isinstance(told, str)
    assert words in told


def test_only_a_pass_is_a_pass() -> None:
    tests = VerifierReport({"a": "passed", "b": "skipped", "c": "failed"})
    assert tests.list_failed(["a", "b", "c", "d"]) == ["b", "c", "d"]
