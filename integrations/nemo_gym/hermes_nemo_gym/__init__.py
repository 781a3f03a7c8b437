"""NeMo Gym on hermes-exec: `sandbox: {hermes: {…}}` runs the sandboxes of its agents and environments in slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_nemo_gym.provider import HermesProvider

__all__ = ["HermesProvider"]


def __getattr__(name: str) -> object:
    if name != "HermesProvider":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hermes_nemo_gym.version import validate_version

    validate_version()
    from hermes_nemo_gym.provider import HermesProvider

    return HermesProvider
