"""The number in an answer to a word problem."""

from __future__ import annotations

from decimal import Decimal

import pytest

from hermes_atropos import datasets
from hermes_atropos.envs.gsm8k_agent import find_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 41.\n#### 42", "42"),
        (r"So \boxed{42}.", "42"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        ("#### 7\n\\boxed{8}", "8"),
        (r"\boxed{3,350,000}", "3350000"),
        (r"\boxed{\text{12 km}}", "12"),
        (r"\boxed{\$1,200.50}", "1200.50"),
        ("#### -9", "-9"),
        ("#### .5", "0.5"),
        ("42", None),
        ("", None),
        (r"\boxed{}", None),
        (r"\boxed{1 or 2}", None),
        (r"\boxed{forty}", None),
    ],
)
def test_number_in(text: str, number: str | None) -> None:
    assert find_number(text) == (None if number is None else Decimal(number))


def test_equal_numbers_are_equal_however_they_are_written() -> None:
    assert find_number(r"\boxed{42.0}") == find_number("#### 42")
    assert find_number(r"\boxed{3350000}") == find_number("#### 3,350,000")


def test_every_shipped_problem_has_one() -> None:
    rows = datasets.load_items(None, "gsm8k_agent", "train", {"question": str, "answer": str})
    assert all(find_number(row["answer"]) is not None for row in rows)
