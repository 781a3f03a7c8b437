"""status.json, and the words that are made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hermes_batch.status import STATUS, RunStatus, count_hosts, is_working, read_status, write_status
from hermes_batch.status_words import describe_outcomes, format_cost, format_count, format_duration
from hermes_exec.errors import ConfigError
from hermes_exec.file_lock import lock_file


def test_status_survives_the_file_and_only_the_owner_reads_it(tmp_path: Path) -> None:
    status = RunStatus(total=4, records=1, workers={"model": 2}, stopped="\ud800")
    write_status(tmp_path, status.model_copy(update={"stopped": "down"}))
    assert read_status(tmp_path) == status.model_copy(update={"stopped": "down"})
    assert (tmp_path / STATUS).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]


@pytest.mark.parametrize("text", ["{", "[]", '{"total": "many"}'])
def test_status_of_another_program_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / STATUS).write_text(text)
    with pytest.raises(ConfigError, match="is not the status of a run"):
        read_status(tmp_path)


def test_missing_status_names_the_way_to_the_results(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no run"):
        read_status(tmp_path)
    (tmp_path / "trajectories.jsonl").touch()
    with pytest.raises(ConfigError, match="hermes-exec batch show"):
        read_status(tmp_path)


def test_status_of_a_later_version_is_read(tmp_path: Path) -> None:
    facts = {**RunStatus(total=4, records=1).model_dump(), "later": 1}
    (tmp_path / STATUS).write_text(json.dumps(facts))
    assert read_status(tmp_path).total == 4


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_run_works_while_its_process_lives_and_until_it_ends(tmp_path: Path) -> None:
    assert is_working(tmp_path, RunStatus(total=4, records=1))
    assert not is_working(tmp_path, RunStatus(total=4, records=1, ended=True))
    assert not is_working(tmp_path, RunStatus(total=4, records=1, pid=dead_process()))


@pytest.mark.parametrize("host", [None, "elsewhere"])
def test_old_status_is_decided_by_the_lock(tmp_path: Path, host: str | None) -> None:
    old = (datetime.now(UTC) - timedelta(minutes=5)).isoformat(timespec="seconds")
    facts = {"total": 4, "records": 1, "written": old, "pid": os.getpid(), **({"host": host} if host else {})}
    status = RunStatus.model_validate(facts)
    assert not is_working(tmp_path, status)
    with (tmp_path / "trajectories.jsonl").open("ab") as file:
        assert not is_working(tmp_path, status)
        assert lock_file(file)
        assert is_working(tmp_path, status)
    assert not is_working(tmp_path, status)


def test_hosts_are_counted_by_the_names_of_sandboxes() -> None:
    assert count_hosts({"gpu1:a": 0, "gpu1:b": 0, "me@gpu2:22:c": 0}) == {"gpu1": 2, "me@gpu2:22": 1}
    assert count_hosts({"hermes-exec-1234": 0}) == {}


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ({}, "0 of 0 solved"),
        ({"solved": 218, "unsolved": 62, "unscored": 20}, "218 of 280 solved, 20 unscored"),
        ({"unchecked": 7}, "7 unchecked"),
        ({"solved": 1, "unchecked": 7}, "1 of 1 solved, 7 unchecked"),
    ],
)
def test_outcomes_in_words(outcomes: dict[str, int], words: str) -> None:
    assert describe_outcomes(outcomes) == words


def test_figures_in_words() -> None:
    assert [format_duration(seconds) for seconds in (3, 89.7, 725, 11_100, 3600 * 52)] == [
        *("3 s", "90 s", "12 min", "3 h 05 min", "2 d 4 h")
    ]
    assert [format_count(number) for number in (0, 999, 1000, 45_210, 999_000, 1_234_567)] == [
        *("0", "999", "1.00k", "45.2k", "999k", "1.23M")
    ]
    assert [format_cost(cost) for cost in (0.0, 0.00123, 0.5, 1234.5)] == ["0", "0.0012", "0.50", "1,234.50"]
