"""The benchmark's report: what was reached is said from the measurements alone."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import acquire, chart, start, transfer
from benchmarks.calls import DOCKER, ENTRIES, LOCAL, WORK
from benchmarks.machine_load import LoadSample
from benchmarks.measurements import Curves, Discipline, Figure, Measurements, Point
from benchmarks.options import Options
from benchmarks.report import write_report
from benchmarks.targets import Target, targets


def with_times(**times_ms: float) -> Measurements:
    """One discipline, with one call of each contender."""
    discipline = Discipline("work", "calls", {})
    for name, duration_s in times_ms.items():
        discipline.sample(name).add_one(duration_s / 1000)
    return Measurements([discipline])


def test_a_target_of_a_part_that_was_left_out_is_not_reached() -> None:
    assert {target.row(Measurements())[-1] for target in targets()} == {"not measured"}


def test_no_two_targets_have_the_same_name() -> None:
    names = [target.name for target in targets()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("value", "least", "reached"), [(1, False, "yes"), (1, True, "yes"), (2, False, "**no**"), (0.5, True, "**no**")]
)
def test_a_bound_itself_is_within_it(value: float, least: bool, reached: str) -> None:
    target = Target("t", 1, " ms", lambda _: (value, ""), least=least)
    assert target.row(Measurements())[-1] == reached


def test_calls_and_times_that_targets_are_about_are_among_those_that_are_measured() -> None:
    measurements = Measurements([Discipline(work.name, "calls", {}) for work in WORK])
    for name in (acquire.ACQUIRE, acquire.RESET, *(f"{Options.megabytes} MiB {way}" for way in ("up", "down"))):
        measurements.disciplines.append(Discipline(name, "times", {}))
    contenders = [*(entry.name for entry in ENTRIES), transfer.STREAM, transfer.ARCHIVE]
    for discipline in measurements.disciplines:
        for name in contenders:
            discipline.sample(name).add_one(0.001)
    unmeasured = [target.name for target in targets() if target.row(measurements)[-1] == "not measured"]
    about = ("no-op", "write", "read", "10 MiB", "100 MiB", "warm", "release")
    assert [name for name in unmeasured if name.startswith(about)] == []
    assert start.IMPORT in unmeasured


def test_the_report_of_a_busy_machine_says_so(tmp_path: Path) -> None:
    write_report(tmp_path, Measurements(), [LoadSample("calls", 7.5, 0.9)], 60)
    assert "The machine was busy" in (tmp_path / "RESULTS.md").read_text()
    write_report(tmp_path, Measurements(), [LoadSample("calls", 0.1, 0.01)], 60)
    assert "The machine was busy" not in (tmp_path / "RESULTS.md").read_text()


def test_the_report_has_a_row_for_each_contender_and_figure_and_names_what_was_left_out(tmp_path: Path) -> None:
    measurements = with_times(ours=2.0, bare=1.0)
    measurements.disciplines[0].bases = {"ours": "bare"}
    measurements.figures["memory"] = Figure(3.25, "MiB")
    measurements.leave_out("another", "it is not here")
    write_report(tmp_path, measurements, [LoadSample("calls", 0.1, 0.0)], 60)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| ours | 2.00 | 2.00 | 2.00 | 500 | 0.50 | 1 |" in text
    assert "| memory | 3.25 MiB |" in text
    assert "- another: it is not here" in text


def test_charts_are_well_formed_and_show_every_value() -> None:
    bars = ET.fromstring(chart.bars([("a < b", "{:.1f}", {LOCAL: 1.5, DOCKER: 20.0})]))
    assert {"1.5", "20.0", LOCAL, DOCKER} <= {each.text for each in bars.iter() if each.text}
    points = [Point(1, 2.0, 3.0, 500.0), Point(512, 90.0, 120.0, 5000.0)]
    curves = ET.fromstring(chart.curves(Curves("title", "calls", "f.svg", {LOCAL: points, DOCKER: points})))
    lines = [each for each in curves.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 2 * 3
    assert all(len(line.attrib["points"].split()) == 2 for line in lines)
