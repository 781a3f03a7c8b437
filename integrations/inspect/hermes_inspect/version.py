"""The versions of inspect_ai that this package supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hermes_exec import ConfigError

SUPPORTED = "inspect_ai>=0.3.285,<0.4"


def validate_version() -> None:
    """Raise ConfigError if no supported version of inspect_ai is installed."""
    try:
        installed = version("inspect_ai")
    except PackageNotFoundError:
        installed = "none"
    major, minor, patch = (*installed.split("."), "", "")[:3]
    if (major, minor) != ("0", "3") or not patch.isdecimal() or int(patch) < 285:
        raise ConfigError(f"hermes_inspect needs {SUPPORTED}, installed: {installed}. Run: pip install '{SUPPORTED}'")
