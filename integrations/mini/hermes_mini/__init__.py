"""mini-swe-agent on hermes-exec: `mini --environment-class hermes_mini.Environment` runs its commands in a slot."""

from hermes_mini.environment import EnvironmentConfig
from hermes_mini.environment import MiniEnvironment as Environment

__all__ = ["Environment", "EnvironmentConfig"]
