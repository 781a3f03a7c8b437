"""Errors of models: a completion that could not be had."""

from __future__ import annotations

from hermes_exec.errors import ErrorCause


class ModelError(Exception):
    """Raised by a model when it could not give a completion, after the retries that it may make.

    `cause` is `provider` (the service failed, refused or did not answer in time) or `config` (the request can never
    succeed as it is: a wrong key, an unknown model, a refused parameter). `status` is the HTTP status, where there is
    one.
    """

    def __init__(self, message: str, *, cause: ErrorCause = ErrorCause.PROVIDER, status: int | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.status = status


class ContextExceeded(ModelError):
    """Raised by a model when the conversation no longer fits into its context window."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message, cause=ErrorCause.BUDGET, status=status)


class ContentFiltered(ModelError):
    """Raised by a model when its provider refuses what the conversation is about."""


class EndpointAway(ModelError):
    """Raised by a model when its endpoint has completed no request of anybody for as long as a request waits for it."""


class EndpointFailing(EndpointAway):
    """Raised by a model in the place of EndpointAway when the endpoint was there and failed this very request, as with
    HTTP 500: the request may be why.
    """


class AccessRefused(ModelError):
    """Raised by a model when its endpoint refuses the key, or the key has no quota left: no other request with that
    key has a chance either.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message, cause=ErrorCause.CONFIG, status=status)
