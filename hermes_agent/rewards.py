"""Converts scores of numpy, torch and similar packages to Python numbers, all of them finite."""

from __future__ import annotations

import math
import reprlib


def to_float(value: object) -> float:
    """Return a number as a finite float.

    It accepts Python numbers, and scalars, arrays and tensors of one element of numpy, torch and similar packages,
    without importing those packages.

    Raises:
        ValueError: If the value is NaN, an infinity, too large for a float, or not one real number, such as a text. The
            message begins with the value.
    """
    try:
        number = value.item() if callable(getattr(value, "item", None)) else value  # type: ignore[attr-defined]
        converted = float(number) if hasattr(number, "__float__") else None
    except OverflowError:
        converted = math.inf
    except Exception:  # noqa: BLE001 - whatever a foreign object raises, it is no number
        converted = None
    if converted is None:
        raise ValueError(f"{show_value(value)} is not a number")
    if not math.isfinite(converted):
        raise ValueError(f"{show_value(value)} is not a finite number")
    return converted


def to_bool(value: object) -> bool:
    """Return a truth value of Python, numpy or torch as a bool.

    Raises:
        ValueError: If the value is neither a bool nor a number. The message begins with the value.
    """
    return to_float(value) != 0


def show_value(value: object) -> str:
    """Return a value for an error message, shortened."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001 - of a foreign object, or of an integer of too many digits
        return f"a value of type {type(value).__name__}"
