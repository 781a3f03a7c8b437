"""Translation of errors of Modal's client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial

from grpclib.exceptions import StreamTerminatedError
from modal import exception as modal_errors

from hermes_exec.backends.engine_errors import ErrorRow, translate
from hermes_exec.backends.modal.config import INSTALL, TOKEN
from hermes_exec.errors import (
    BackendUnavailable,
    ConfigError,
    ErrorCause,
    ExecError,
    ImageError,
    LaunchError,
    QuotaExceeded,
)

ROWS = (
    ErrorRow(
        BackendUnavailable,
        f"Modal does not let us in ({{reason}}): {TOKEN}",
        types=(modal_errors.AuthError, modal_errors.PermissionDeniedError),
    ),
    ErrorRow(
        BackendUnavailable,
        f"Modal does not know this version of its client ({{reason}}): {INSTALL}",
        types=(modal_errors.VersionError,),
    ),
    ErrorRow(QuotaExceeded, "Modal has no room for it: {reason}", types=(modal_errors.ResourceExhaustedError,)),
    ErrorRow(ImageError, "Modal cannot build the image: {reason}", types=(modal_errors.ImageBuildError,)),
    ErrorRow(LaunchError, "Modal refuses: {reason}", types=(modal_errors.ConflictError,)),
    ErrorRow(
        ConfigError,
        "Modal refuses the request: {reason}",
        types=(modal_errors.InvalidError, modal_errors.NotFoundError, ValueError),
    ),
    ErrorRow(partial(LaunchError, cause=ErrorCause.PROVIDER), "Modal: {kind}{reason}"),
)
FOREIGN = (modal_errors.Error, StreamTerminatedError, ValueError, OSError, CancelledError)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn errors of the client into errors of this library, with Modal's own text.

    Raises:
        BackendUnavailable: If Modal rejects the credentials or this version of its client.
        QuotaExceeded: If Modal has no capacity, or received too many requests.
        ImageError: If an image was not built.
        ConfigError: If the request or a setting of the client is wrong, or names a missing secret, volume or
            environment.
        LaunchError: For everything else; another try may succeed.
    """
    try:
        yield
    except ExecError:
        raise
    except FOREIGN as error:
        reason = str(error)
        kind = f"{type(error).__name__}: " if reason else type(error).__name__
        raise translate(ROWS, reason, failure=error, kind=kind) from error
