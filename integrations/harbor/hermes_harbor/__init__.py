"""harbor on hermes-exec: `harbor run -e hermes_harbor:HarborEnvironment` runs each trial in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_harbor.environment import HarborEnvironment

__all__ = ["HarborEnvironment"]
SUPPORTED = "harbor>=0.26,<0.27"

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, where=("environment",), requires=SUPPORTED)
