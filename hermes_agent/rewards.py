"""Numbers of scores: those of numpy, torch and similar packages become Python's, and all of them are finite."""

from __future__ import annotations

import math
import reprlib


def to_float(value: object) -> float:
    """Return a number as a finite float.

    Python's numbers, and without importing their packages scalars, arrays and tensors of one element of numpy, torch
    and the like.

    Raises:
        ValueError: NaN, an infinity, a number that no float holds, or something else than one real number, such as a
            text. The message begins with the value.
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
    """Return a yes or no of Python, numpy or torch as a bool.

    Raises:
        ValueError: anything that is neither a bool nor a number. The message begins with the value.
    """
    return to_float(value) != 0


def show_value(value: object) -> str:
    """Return a value for an error message, shortened."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001 - of a foreign object, or of an integer of too many digits
        return f"a value of type {type(value).__name__}"
