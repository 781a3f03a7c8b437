"""The comparison sees what differs, and the documentation says what the suites and the explained differences are."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.packages.compare import Named, Seen, counted, differing, gone, named, settled
from tests.packages.known_differences import EXPLAINED
from tests.packages.locations import PAIRS, NoReport, report_of
from tests.packages.page import difference, keys, told, written
from tests.packages.report import Case, Report, parsed
from tests.packages.suites import SUITES

XML = """<testsuites><testsuite>
<testcase classname="tests.test_a.Cases" name="test_one[a/b.py]" file="tests/test_a.py" />
<testcase classname="tests.test_a" name="test_two" file="tests/test_a.py">
<failure message="no&#10;more">text</failure></testcase>
<testcase classname="tests.test_a" name="test_three" file="tests/test_a.py"><skipped message="no zsh" /></testcase>
<testcase classname="tests.test_a" name="test_four" file="tests/test_a.py"><error message="set-up" /></testcase>
</testsuite></testsuites>"""

PASSED, FAILED = Case("passed", ""), Case("failed", "assert 0")


def test_a_report_has_verdicts_by_node_id() -> None:
    assert parsed(XML) == {
        "tests/test_a.py::Cases::test_one[a/b.py]": Case("passed", ""),
        "tests/test_a.py::test_two": Case("failed", "no"),
        "tests/test_a.py::test_three": Case("skipped", "no zsh"),
        "tests/test_a.py::test_four": Case("failed", "set-up"),
    }


@pytest.mark.parametrize("ended", ["0", "1"])
def test_a_suite_that_ran_to_its_end_gives_its_report(ended: str) -> None:
    files = {"ended": f"{ended}\n", "report.xml": XML, "log": "4 tests"}
    assert len(report_of(files.__getitem__)) == 4


def test_a_suite_that_was_interrupted_is_no_report() -> None:
    files = {"ended": "2\n", "report.xml": XML, "log": "ImportError"}
    with pytest.raises(NoReport, match="ended with 2: ImportError"):
        report_of(files.__getitem__)


def test_a_suite_whose_pytest_was_killed_is_no_report() -> None:
    def read(name: str) -> str:
        if name == "ended":
            raise FileNotFoundError(name)
        return "half a line"

    with pytest.raises(NoReport, match="half a line"):
        report_of(read)


def test_a_report_that_was_not_written_to_its_end_is_no_report() -> None:
    files = {"ended": "1\n", "report.xml": "", "log": "no space left"}
    with pytest.raises(NoReport, match="no space left"):
        report_of(files.__getitem__)


def test_what_differs_and_what_is_on_one_side_only() -> None:
    outside: Report = {"same": PASSED, "worse": PASSED, "outside only": PASSED}
    inside: Report = {"same": PASSED, "worse": FAILED, "inside only": PASSED}
    assert differing(outside, inside) == ["inside only", "outside only", "worse"]


def seen(outside: str, inside: str) -> Seen:
    one = Seen()
    for left, right in zip(outside.split(), inside.split(), strict=True):
        one.add({"t": Case(left, "")}, {"t": Case(right, "")}, "t")
    return one


def test_a_test_that_fails_in_slots_alone_is_not_settled_by_runs_in_which_it_passes() -> None:
    assert not settled(seen("passed passed passed", "failed passed passed"), None)


def test_a_test_that_does_outside_what_it_did_in_a_slot_is_settled() -> None:
    assert settled(seen("passed failed passed", "failed passed passed"), None)


def test_a_test_that_varies_by_name_may_not_vanish() -> None:
    varying = Named("p", "t", "races", varies=True)
    assert settled(seen("passed", "failed"), varying)
    vanished = Seen()
    vanished.add({"t": PASSED}, {}, "t")
    assert not settled(vanished, varying)


def test_a_difference_is_named_for_its_places_alone() -> None:
    known = [Named("p", "t", "no terminal", pairs=("local",))]
    assert named("p", "local", "t", known) is known[0]
    assert named("p", "docker", "t", known) is None
    assert named("q", "local", "t", known) is None


def test_an_explained_difference_that_is_gone_is_told() -> None:
    known = [Named("p", "t", "no terminal", pairs=("local",)), Named("p", "u", "races", varies=True)]
    assert gone("p", "local", [], known) == ["t"]
    assert gone("p", "local", ["t"], known) == []
    assert gone("p", "docker", [], known) == []


def test_tests_that_vary_count_as_such_whatever_came_out() -> None:
    varying = [Named("p", "t", "races", varies=True)]
    assert counted("p", {"t": FAILED, "u": FAILED}, varying) == Counter(varies=1, failed=1)
    assert told(counted("p", {"t": PASSED, "u": PASSED}, varying)) == "1 passed, 1 varies"


def test_the_table_is_whole_and_no_verdict_in_it_differs_without_a_name() -> None:
    rows = {row.key: row for row in written()[0]}
    assert list(rows) == keys()
    for key, (suite, pair) in zip(keys(), itertools.product(SUITES, PAIRS), strict=True):
        explained = [one for one in EXPLAINED if one.package == suite.name and pair.name in one.pairs]
        assert explained or rows[key].verdicts == rows[key].same, key


def test_the_page_has_all_differences_that_are_explained() -> None:
    assert written()[1] == [difference(one) for one in EXPLAINED]
