"""Errors that models raise when a completion fails."""

from __future__ import annotations

from hermes_exec.errors import ErrorCause


class ModelError(Exception):
    """Raised by a model that could not return a completion, after its own retries.

    Args:
        message: The reason.
        cause: `provider` (the service failed, refused or did not answer in time) or `config` (the request can never
            succeed as it is: a wrong key, an unknown model, a refused parameter).
        status: The HTTP status, if there is one.
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
    """Raised by a model when its provider refuses the content of the conversation."""


class EndpointAway(ModelError):
    """Raised by a model when its endpoint has completed no request, from any caller, for as long as a request may wait
    for it.
    """


class EndpointFailing(EndpointAway):
    """Raised instead of EndpointAway when the endpoint was reachable and failed this very request, as with HTTP 500:
    the request may be the cause.
    """


class AccessRefused(ModelError):
    """Raised by a model when its endpoint refuses the key, or the key has no quota left. Any other request with this
    key would fail too.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message, cause=ErrorCause.CONFIG, status=status)


class RequestRefused(ModelError):
    """Raised by a model that cannot serve a request as it is: its chat template refuses the messages, or it does not
    support a parameter.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=ErrorCause.CONFIG)
