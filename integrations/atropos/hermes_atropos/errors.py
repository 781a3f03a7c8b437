"""What can keep an environment from its work."""

from __future__ import annotations

from hermes_exec import ConfigError, ExecError


class EnvironmentStopped(ExecError):
    """Raised when an environment ends because it can no longer fill groups; the message has the last causes."""


class EnvironmentMistake(ConfigError):
    """Raised when the code of an environment is wrong, such as a reward that is not a finite number: no other rollout
    would come out better, and the run ends.
    """


class ServerReachable(ConfigError):
    """Raised when a program in a slot can connect to the server of the trainer or of the model: the run ends."""
