"""The versions of deepagents that this package supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hermes_exec import ConfigError

SUPPORTED = "deepagents>=0.7,<0.8"


def validate_version() -> None:
    """Raise ConfigError if no supported version of deepagents is installed."""
    try:
        installed = version("deepagents")
    except PackageNotFoundError:
        installed = "none"
    if installed.split(".")[:2] != ["0", "7"]:
        raise ConfigError(f"hermes_langchain needs {SUPPORTED}, installed: {installed}. Run: pip install '{SUPPORTED}'")
