"""What can keep an environment from its work."""

from __future__ import annotations

from hermes_exec import ExecError


class EnvironmentStopped(ExecError):
    """Raised when an environment ends because it can no longer fill groups; the message has the last causes."""
