"""The versions of hermes-agent that this package supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hermes_exec import ConfigError

SUPPORTED = "hermes-agent>=0.19,<0.20"


def validate_version() -> None:
    """Raise ConfigError if hermes-agent is neither 0.19 nor a version with providers of terminal environments."""
    try:
        installed = version("hermes-agent")
    except PackageNotFoundError:
        installed = "none"
    if installed.split(".")[:2] != ["0", "19"]:
        raise ConfigError(f"hermes_plugin needs {SUPPORTED}, installed: {installed}. Run: pip install '{SUPPORTED}'")
