"""The index of a run fits its trajectories, or is made anew."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_batch.index import INDEX, TRAJECTORIES, Row, index_fits, is_record, iterate_index
from hermes_batch.trajectories import Changes, Trajectories, read_records, read_rows
from tests.unit.batch.test_columns import OLD
from tests.unit.batch.test_record import episode, make

pytestmark = pytest.mark.anyio


async def write(out: Path, count: int) -> None:
    done = await episode("done")
    with Trajectories.create(out, overwrite=False) as lines:
        for sample in range(count):
            await lines.append(*make(done, sample=sample))


def keep(_: Iterator[Row]) -> Changes:
    return {}


def index_lines(out: Path) -> list[bytes]:
    return (out / INDEX).read_bytes().splitlines()


def records_at(out: Path) -> list[Row]:
    data = (out / TRAJECTORIES).read_bytes()
    rows = [row for row in iterate_index(out) if is_record(row)]
    return [json.loads(data[row["offset"] : row["offset"] + row["length"]]) for row in rows]


async def test_index_has_a_row_for_each_record(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    assert len(index_lines(tmp_path)) == 4
    assert index_fits(tmp_path)
    assert records_at(tmp_path) == [*read_records(tmp_path)]
    rows, broken = read_rows(tmp_path)
    assert ([row["sample"] for row in rows], broken) == ([0, 1, 2], 0)
    assert {row["solved"] for row in rows} == {"unchecked"}


async def test_index_goes_on_after_a_reopening(tmp_path: Path) -> None:
    await write(tmp_path, 2)
    before = index_lines(tmp_path)
    with Trajectories.reopen(tmp_path, keep) as lines:
        await lines.append(*make(None, sample=2))
    assert index_lines(tmp_path)[:-1] == before
    assert records_at(tmp_path) == [*read_records(tmp_path)]


@pytest.mark.parametrize("damage", ["gone", "empty", "half", "cut", "text", "older", "other", "edited", "version"])
async def test_index_that_does_not_fit_is_made_anew(tmp_path: Path, damage: str) -> None:
    await write(tmp_path, 40)
    index, trajectories = tmp_path / INDEX, tmp_path / TRAJECTORIES
    lines, records = index.read_bytes().splitlines(keepends=True), trajectories.read_bytes().splitlines(keepends=True)
    if damage == "gone":
        index.unlink()
    elif damage == "edited":
        trajectories.write_bytes(b"".join(records).replace(b'"sample": 7', b'"sample": 9'))
    elif damage == "other":
        trajectories.write_bytes(b"".join(reversed(records)))
        index.write_bytes(b"".join(lines))
    elif damage == "older":
        os.utime(index, (1, 1))
    else:
        changed = {
            "empty": [],
            "half": lines[:20],
            "cut": [*lines[:20], lines[20][:30]],
            "text": [*lines[:9], b"[]\n", b"text\n", *lines[9:]],
            "version": [lines[0].replace(b'"index": 1', b'"index": 0'), *lines[1:]],
        }[damage]
        index.write_bytes(b"".join(changed))
    expected = [*read_records(tmp_path)]
    assert records_at(tmp_path) == expected
    with Trajectories.reopen(tmp_path, keep):
        pass
    assert index_fits(tmp_path)
    assert len(index_lines(tmp_path)) == 41
    assert records_at(tmp_path) == expected
    assert sorted(row["sample"] for row in read_rows(tmp_path)[0]) == sorted(row["sample"] for row in expected)


async def test_any_cut_of_the_files_is_read_and_mended(tmp_path: Path) -> None:
    await write(tmp_path, 5)
    index, trajectories = (tmp_path / INDEX).read_bytes(), (tmp_path / TRAJECTORIES).read_bytes()
    whole = [*read_records(tmp_path)]
    chance = random.Random(7)
    for _ in range(60):
        cut = trajectories[: chance.randrange(len(trajectories) + 1)]
        (tmp_path / TRAJECTORIES).write_bytes(cut)
        (tmp_path / INDEX).write_bytes(index[: chance.randrange(len(index) + 1)])
        complete = cut.count(b"\n") + any(cut.endswith(end) for end in trajectories.splitlines())
        with Trajectories.reopen(tmp_path, keep) as lines:
            await lines.append(*make(None, sample=9))
        assert [row["sample"] for row in records_at(tmp_path)] == [*range(complete), 9]
        assert [*read_records(tmp_path)][:-1] == whole[:complete]
        assert len(index_lines(tmp_path)) == complete + 2


async def test_records_are_removed_renamed_and_upgraded(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    with (tmp_path / TRAJECTORIES).open("a") as file:
        file.write("[]\n" + json.dumps(OLD) + "\n")

    def plan(rows: Iterator[Row]) -> Changes:
        offsets = [row["offset"] for row in rows]
        assert len(offsets) == 4
        return {offsets[0]: None, offsets[1]: ("a" * 32, 5)}

    with Trajectories.reopen(tmp_path, plan):
        pass
    records = [*read_records(tmp_path)]
    assert [(row["group"][:2], row["sample"]) for row in records] == [("aa", 5), ("00", 2), ("d-", 0)]
    assert records_at(tmp_path) == records
    assert sorted(os.listdir(tmp_path)) == [INDEX, TRAJECTORIES]


async def test_records_stay_if_the_plan_raises(tmp_path: Path) -> None:
    await write(tmp_path, 2)
    before = (tmp_path / TRAJECTORIES).read_bytes()

    def refuse(rows: Iterator[Row]) -> Changes:
        raise ValueError(f"{len([*rows])} records")

    with pytest.raises(ValueError, match="2 records"):
        Trajectories.reopen(tmp_path, refuse)
    assert (tmp_path / TRAJECTORIES).read_bytes() == before
    with Trajectories.reopen(tmp_path, keep):  # the lock is free again
        pass


async def test_index_holds_the_end_of_an_error_and_no_long_metadata(tmp_path: Path) -> None:
    made, images = make(None)
    made["task_metadata"] = json.dumps({"x": "y" * 3000})
    made["errors"] = json.dumps([{"turn": 1, "where": "infra", "kind": "K", "message": "m" * 3000}])
    made["id"] = "lone \ud800"
    with Trajectories.create(tmp_path, overwrite=False) as lines:
        await lines.append(made, images)
    (row,) = iterate_index(tmp_path)
    assert "task_metadata" not in row
    assert len(row["errors"]) < 600
    assert index_fits(tmp_path)
