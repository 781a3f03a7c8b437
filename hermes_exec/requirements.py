"""Checks of installed packages that adapters work with, and that hermes-exec itself does not need."""

import re

from hermes_exec.errors import ConfigError


def require_version(user: str, requirement: str) -> None:
    """Check that a supported version of a package is installed.

    Args:
        user: The package that needs it, for the message.
        requirement: `NAME>=OLDEST,<BELOW`, such as `harbor>=0.26,<0.27`.

    Raises:
        ConfigError: If the package is missing, too old or too new.
    """
    from importlib.metadata import PackageNotFoundError, version

    name, oldest, below = re.split(r">=|,<", requirement)
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = "none"
    if not _numbers(oldest) <= _numbers(installed) < _numbers(below):
        raise ConfigError(f"{user} needs {requirement}, installed: {installed}. Run: pip install '{requirement}'")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
