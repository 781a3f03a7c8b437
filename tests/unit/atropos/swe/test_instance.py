"""Rows of the dataset: what is taken, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes_atropos.envs.swe_smith_oracle.instance import Sdist, read_instance
from hermes_exec.errors import ConfigError

ROW: dict[str, Any] = {
    "instance_id": "a__b.1234abcd.func_pm__x",
    "repo": "swesmith/a__b.1234abcd",
    "base_commit": "0123abcd",
    "problem_statement": "It is broken.",
    "text": "more",
    "patch": "",
    "FAIL_TO_PASS": ["tests/test_a.py::test_x[a b]", "tests/test_a.py::test_y[$x]"],
    "PASS_TO_PASS": ["tests/test_a.py::test_z['\"; rm -rf ~]"],
}
SDIST = {"name": "a", "version": "1.0", "sha256": "0" * 64}


def test_a_row_comes_back_as_it_was() -> None:
    row = ROW | {"sdist": SDIST}
    assert read_instance(row).row() == row
    assert read_instance(row).sdist == Sdist("a", "1.0", "0" * 64)
    assert "sdist" not in read_instance(ROW).row()


def test_lists_may_be_json_text_or_arrays() -> None:
    class Array:
        def tolist(self) -> list[str]:
            return list(ROW["FAIL_TO_PASS"])

    as_text = ROW | {name: json.dumps(ROW[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    assert read_instance(as_text) == read_instance(ROW)
    assert read_instance(ROW | {"FAIL_TO_PASS": Array()}) == read_instance(ROW)


def test_the_public_dataset_has_no_patch_in_some_rows_and_fields_of_its_own() -> None:
    row = {name: value for name, value in ROW.items() if name not in ("patch", "text")} | {"image_name": "x"}
    assert read_instance(row).patch == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"instance_id": None}, r"row 7: instance_id must be a text that is not empty, not None"),
        ({"repo": "a/b/c"}, r"instance 'a__b.*: repo must be of the form owner/name, not 'a/b/c'"),
        ({"repo": "--upload-pack=x"}, "repo must be of the form"),
        ({"base_commit": "main"}, "base_commit must be a commit id in hexadecimal, not 'main'"),
        ({"problem_statement": " "}, "problem_statement must be a text that is not empty"),
        ({"patch": 3}, "patch must be a text, not 3"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "[1"}, "FAIL_TO_PASS is a text but not a JSON list"),
        ({"FAIL_TO_PASS": {"a": 1}}, "FAIL_TO_PASS must be a list of test ids"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS must contain test ids, not 1"),
        ({"FAIL_TO_PASS": ["--help"]}, "which is not a test in the repository"),
        ({"FAIL_TO_PASS": ["../x/test_a.py::test_a"]}, "which is not a test in the repository"),
        ({"PASS_TO_PASS": ROW["FAIL_TO_PASS"]}, "is in both FAIL_TO_PASS and PASS_TO_PASS"),
        ({"sdist": "a==1"}, "sdist must have name, version and sha256"),
        ({"sdist": SDIST | {"sha256": "x"}}, "sdist: sha256 must be 64 hexadecimal digits, not 'x'"),
        ({"sdist": SDIST | {"name": "../x"}}, "sdist: name must be the name of a package"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_instance(ROW | change, 7)
