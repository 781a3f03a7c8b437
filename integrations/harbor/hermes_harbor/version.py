"""The versions of harbor that this package supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hermes_exec import ConfigError

SUPPORTED = "harbor>=0.26,<0.27"


def validate_version() -> None:
    """Raise ConfigError if no supported version of harbor is installed."""
    try:
        installed = version("harbor")
    except PackageNotFoundError:
        installed = "none"
    if installed.split(".")[:2] != ["0", "26"]:
        raise ConfigError(f"hermes_harbor needs {SUPPORTED}, installed: {installed}. Run: pip install '{SUPPORTED}'")
