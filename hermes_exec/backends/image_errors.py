"""What a registry's or an engine's words about an image come to."""

from __future__ import annotations

from functools import partial

from hermes_exec.backends.engine_errors import ErrorRow, translate
from hermes_exec.errors import ErrorCause, ExecError, ImageError, QuotaExceeded

UNREACHABLE = (
    r"(?i): (dial|read|write) (tcp|udp)|no such host|server misbehaving|timeout|deadline exceeded"
    r"|connection (refused|reset)|network is unreachable|unexpected HTTP status: 5\d\d|\bEOF$"
)
"""Messages about a registry that does not answer, or not now; there is no code for it."""
ROWS = (
    ErrorRow(QuotaExceeded, "the registry does not hand out {name!r} now: {reason}", "toomanyrequests|(?i:rate limit)"),
    ErrorRow(
        partial(ImageError, cause=ErrorCause.PROVIDER, retryable=True),
        "the image {name!r} cannot be fetched, its registry is not to be had now: {reason}",
        UNREACHABLE,
    ),
    ErrorRow(ImageError, "the image {name!r} cannot be fetched: {reason}"),
)
LOG_LINES, LOG_CHARS = 10, 1000
"""How much of the end of a build's log an error has."""


def fetch_error(name: str, reason: str) -> ExecError:
    """The error for an image that cannot be fetched, for the reason that was told."""
    return translate(ROWS, reason, name=name)


def build_error(name: str, log: str) -> ImageError:
    """The error for an image that cannot be built, with the end of what was said of it."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    tail = "\n".join(lines[-LOG_LINES:])[-LOG_CHARS:] or "the engine did not say why"
    return ImageError(f"the image {name!r} cannot be built: {tail}")
