"""The versions of NeMo Gym that this package supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hermes_exec import ConfigError

SUPPORTED = "nemo-gym>=0.4,<0.8"


def validate_version() -> None:
    """Raise ConfigError if no supported version of NeMo Gym is installed."""
    try:
        installed = version("nemo-gym")
    except PackageNotFoundError:
        installed = "none"
    if installed.split(".")[:2] not in (["0", minor] for minor in "4567"):
        raise ConfigError(f"hermes_nemo_gym needs {SUPPORTED}, installed: {installed}. Run: pip install '{SUPPORTED}'")
