"""Exit codes of the command line, and which error ends with which."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from hermes_exec.errors import BackendUnavailable, CommandFailed, ErrorCause, ExecError, OutputLimitExceeded

OK: Final = 0
FAILED: Final = 1
"""The thing itself failed: the command, a check, a suite."""
USAGE: Final = 2
"""Wrong usage or configuration: nothing was started."""
INFRA: Final = 3
"""A sandbox, a backend or its provider failed."""
TIMED_OUT: Final = 143
"""The time of a command was over: 128 + SIGTERM."""
INTERRUPTED: Final = 130
"""SIGINT or SIGTERM ended it, and every sandbox is gone."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a file, or of standard output, that takes no more data."""


def code_of(error: ExecError | OSError) -> int:
    """Return the exit code that an error ends the command line with."""
    if not isinstance(error, ExecError):
        return FAILED if error.errno in NO_ROOM else USAGE
    if isinstance(error, (CommandFailed, OutputLimitExceeded)) or error.cause is ErrorCause.POLICY:
        return FAILED
    if error.cause is ErrorCause.CONFIG and not isinstance(error, BackendUnavailable):
        return USAGE
    return INFRA


def is_reader_gone(error: BaseException) -> bool:
    """Whether nobody reads what is printed any more, and nothing else is wrong."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_reader_gone, error.exceptions))
    return isinstance(error, BrokenPipeError) and not isinstance(error, ExecError)


def errors_in(error: BaseException) -> Iterator[ExecError | OSError]:
    """Yield the errors that a user can act on, also inside of groups: those of this library, a full disk, and paths
    that are missing or wrong, here or in a slot.
    """
    if isinstance(error, ExecError) or (
        isinstance(error, OSError) and (error.filename is not None or error.errno in NO_ROOM)
    ):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from errors_in(part)
