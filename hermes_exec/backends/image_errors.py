"""Errors for images that cannot be fetched or built."""

from __future__ import annotations

from functools import partial

from hermes_exec.backends.engine_errors import ErrorRow, translate
from hermes_exec.errors import ErrorCause, ExecError, ImageError, QuotaExceeded

UNREACHABLE = (
    r"(?i): (dial|read|write) (tcp|udp)|no such host|server misbehaving|timeout|deadline exceeded"
    r"|connection (refused|reset)|network is unreachable|unexpected HTTP status: 5\d\d|\bEOF$"
)
"""Messages about a registry that does not answer now. There is no code for it."""
ROWS = (
    ErrorRow(QuotaExceeded, "the registry refuses {name!r} for now: {reason}", "toomanyrequests|(?i:rate limit)"),
    ErrorRow(
        partial(ImageError, cause=ErrorCause.PROVIDER, retryable=True),
        "the image {name!r} cannot be fetched, its registry is unreachable now: {reason}",
        UNREACHABLE,
    ),
    ErrorRow(ImageError, "the image {name!r} cannot be fetched: {reason}"),
)
LOG_LINES, LOG_CHARS = 10, 1000
"""Most lines and characters of a build's log in an error."""


def fetch_error(name: str, reason: str) -> ExecError:
    """Return the error for an image that cannot be fetched, with the reason."""
    return translate(ROWS, reason, name=name)


def build_error(name: str, log: str) -> ImageError:
    """Return the error for an image that cannot be built, with the end of the build's log."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    tail = "\n".join(lines[-LOG_LINES:])[-LOG_CHARS:] or "the engine gave no reason"
    return ImageError(f"the image {name!r} cannot be built: {tail}")
