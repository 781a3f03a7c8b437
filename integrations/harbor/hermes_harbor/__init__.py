"""harbor on hermes-exec: `harbor run -e hermes_harbor:HarborEnvironment` runs each trial in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_harbor.environment import HarborEnvironment

__all__ = ["HarborEnvironment"]


def __getattr__(name: str) -> object:
    if name != "HarborEnvironment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hermes_harbor.version import validate_version

    validate_version()
    from hermes_harbor.environment import HarborEnvironment

    return HarborEnvironment
