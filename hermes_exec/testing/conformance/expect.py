"""Assertions that also work under `python -O` and report the actual value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Caught:
    """The exception that `raises` caught. `error` is set after the block."""

    error: BaseException | None = None

    @property
    def text(self) -> str:
        """The error's message."""
        return str(self.error)


def that(condition: object, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def brief(value: object, limit: int = 300) -> str:
    """Return the repr of a value for a message. A long one has its middle left out."""
    text = repr(value[: limit * 2]) if isinstance(value, (str, bytes)) else repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"


def equal(actual: object, wanted: object, what: str = "value") -> None:
    """Raise AssertionError unless both are equal."""
    if actual != wanted:
        raise AssertionError(f"{what}: got {brief(actual)}, expected {brief(wanted)}")


@contextmanager
def raises(*kinds: type[BaseException], about: str = "") -> Iterator[Caught]:
    """Assert that the block raises one of these errors with `about` in its message."""
    caught = Caught()
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield caught
    except kinds as error:
        caught.error = error
    except Exception as error:
        raise AssertionError(f"expected {names}, got {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"expected {names}, nothing was raised")
    if about and about not in caught.text:
        raise AssertionError(f"{type(caught.error).__name__} does not mention {about!r}: {caught.text!r}")
