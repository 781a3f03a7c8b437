"""inspect_ai on hermes-exec: `sandbox="hermes"` or `sandbox=("hermes", "pool.yaml")` runs each sample in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_inspect.config import HermesConfig
    from hermes_inspect.sandbox import HermesSandboxEnvironment

__all__ = ["HermesConfig", "HermesSandboxEnvironment"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hermes_inspect.version import validate_version

    validate_version()
    if name == "HermesConfig":
        from hermes_inspect.config import HermesConfig

        return HermesConfig
    from hermes_inspect.sandbox import HermesSandboxEnvironment

    return HermesSandboxEnvironment
