"""Exit codes of the command line, and the code of each error."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from hermes_exec.errors import BackendUnavailable, CommandFailed, ErrorCause, ExecError, OutputLimitExceeded

OK: Final = 0
FAILED: Final = 1
"""The command, check or suite itself failed."""
USAGE: Final = 2
"""Wrong usage or configuration: nothing was started."""
INFRA: Final = 3
"""A sandbox, a backend or its provider failed, or a disk is full."""
TIMED_OUT: Final = 143
"""A command timed out: 128 + SIGTERM."""
INTERRUPTED: Final = 130
"""SIGINT or SIGTERM ended it, and every sandbox is gone."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a file, or of standard output, that accepts no more data."""


def code_of(error: ExecError | OSError) -> int:
    """Return the exit code of the command line for an error."""
    if not isinstance(error, ExecError):
        return INFRA if error.errno in NO_ROOM else USAGE
    if isinstance(error, (CommandFailed, OutputLimitExceeded)) or error.cause is ErrorCause.POLICY:
        return FAILED
    if error.cause is ErrorCause.CONFIG and not isinstance(error, BackendUnavailable):
        return USAGE
    return INFRA


def is_reader_gone(error: BaseException) -> bool:
    """Check whether the only failure is that the reader of the output is gone."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_reader_gone, error.exceptions))
    return isinstance(error, BrokenPipeError) and not isinstance(error, ExecError)


def errors_in(error: BaseException) -> Iterator[ExecError | OSError]:
    """Yield the errors that a user can act on, also inside groups.

    These are errors of this library, a full disk, and missing or wrong paths, here or in a slot.
    """
    if isinstance(error, ExecError) or (
        isinstance(error, OSError) and (error.filename is not None or error.errno in NO_ROOM)
    ):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from errors_in(part)
