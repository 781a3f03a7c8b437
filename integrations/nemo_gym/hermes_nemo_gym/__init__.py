"""NeMo Gym on hermes-exec: `sandbox: {hermes: {…}}` runs the sandboxes of its agents and environments in slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_nemo_gym.provider import HermesProvider

__all__ = ["HermesProvider"]
SUPPORTED = "nemo-gym>=0.4,<0.8"

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, where=("provider",), requires=SUPPORTED)
