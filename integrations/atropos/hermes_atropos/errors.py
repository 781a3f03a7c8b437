"""Errors that stop an environment."""

from __future__ import annotations

from hermes_exec import ConfigError, ExecError


class EnvironmentStopped(ExecError):
    """Raised when an environment stops because it can no longer fill groups. The message has the last causes."""


class EnvironmentMistake(ConfigError):
    """Raised when the code of an environment is wrong, for example if a reward is not a finite number. The run ends,
    because every other rollout would fail too.
    """


class ServerReachable(ConfigError):
    """Raised when a program in a slot can connect to the trainer's server or the inference server. The run ends."""
