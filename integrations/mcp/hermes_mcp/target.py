"""The supported versions of the package mcp."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from hermes_exec.errors import ConfigError

OLDEST, NEWEST = (2, 3), (3, 0)
_REMEDY = "run: pip install 'hermes-exec[mcp]'"


def require_mcp() -> None:
    """Check that a supported version of mcp is installed.

    Raises:
        ConfigError: If it is missing, too old or too new.
    """
    try:
        installed = version("mcp")
    except PackageNotFoundError:
        raise ConfigError(f"hermes-exec mcp needs the package mcp, which is not installed; {_REMEDY}") from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:2])
    if not OLDEST <= numbers < NEWEST:
        raise ConfigError(
            f"hermes-exec mcp needs mcp 2.3 or newer, below 3, and mcp {installed} is installed; {_REMEDY}"
        )
