"""Numbers of rewards: what counts as one, and what it becomes."""

from __future__ import annotations

import decimal
import fractions
from typing import Any

import numpy as np
import pytest

from hermes_agent.rewards import to_bool, to_float


class Tensor:
    """A tensor of torch, as far as a reward meets it."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def item(self) -> float:
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]

    def __float__(self) -> float:
        return float(self.item())


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (-0.25, -0.25),
        (decimal.Decimal("0.5"), 0.5),
        (fractions.Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(1), 1.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (np.array([0.5], np.float32), 0.5),
        (Tensor(0.5), 0.5),
    ],
)
def test_numbers_become_plain_floats(value: Any, number: float) -> None:  # noqa: ANN401
    converted = to_float(value)
    assert type(converted) is float
    assert converted == number


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), 10**400, decimal.Decimal("NaN"), decimal.Decimal("sNaN")),
        *(np.float32("nan"), np.float64("-inf"), np.array(np.nan), Tensor(float("nan"))),
        *("0.5", b"1", None, [0.5], {"reward": 1}, 1j, object(), float),
        *(np.str_("0.5"), np.array("0.5"), np.array([0.5, 1]), np.complex64(1), np.array(None)),
        *(np.datetime64("2020-01-01"), Tensor(0.5, 1.0), Tensor()),
    ],
)
def test_values_that_are_no_finite_number_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a (finite )?number"):
        to_float(value)


def test_a_number_too_long_to_print_is_refused() -> None:
    with pytest.raises(ValueError, match="a value of type int is not a finite number"):
        to_float(10**5000)


def test_a_yes_or_no_of_numpy_is_a_bool() -> None:
    assert [to_bool(value) for value in (True, np.bool_(False), np.int64(1), 0.0)] == [True, False, True, False]
    with pytest.raises(ValueError, match="'no' is not a number"):
        to_bool("no")
