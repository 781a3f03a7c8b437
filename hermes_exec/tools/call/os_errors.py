"""Error results for file operations that the operating system refuses."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_exec.errors import ExecError
from hermes_exec.tools.call.failure import ToolFailure

NO_SPACE = "no_space"
REMOVE_FILES_HINT = " Remove files that you no longer need."
"""The advice for a disk that the slot's own files have filled."""
_MAX_PATH_CHARS = 300
_KINDS: tuple[tuple[type[OSError], str, str], ...] = (
    (FileNotFoundError, "not_found", "no such file or directory"),
    (PermissionError, "permission_denied", "permission denied"),
    (IsADirectoryError, "is_directory", "it is a directory"),
    (NotADirectoryError, "not_a_directory", "a part of the path is not a directory"),
    (FileExistsError, "exists", "it exists already"),
)


def os_failure(path: str, error: OSError) -> ToolFailure:
    """Return the error result for `error`, which concerns `path` as the model wrote it."""
    short_path = path if len(path) <= _MAX_PATH_CHARS else path[:_MAX_PATH_CHARS] + "…"
    for error_type, kind, text in _KINDS:
        if isinstance(error, error_type):
            return ToolFailure(kind, f"{short_path}: {text}.")
    reason = (error.strerror or "the operation is not possible").rpartition(": ")[2]
    if "(" not in reason:
        reason = reason.removesuffix(")")  # its opening bracket was cut off
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ToolFailure(NO_SPACE, f"{short_path}: {reason}.")
    if isinstance(error, TimeoutError):
        return ToolFailure("timeout", f"{short_path}: the file operation made no progress and was given up.")
    return ToolFailure("os_error", f"{short_path}: {reason}.")


@contextmanager
def translate_os_errors(path: str) -> Iterator[None]:
    """Turn an OSError about `path` into a ToolFailure inside the block. Errors of the infrastructure pass unchanged."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ExecError):
            raise
        raise os_failure(path, error) from None
