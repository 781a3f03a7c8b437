"""inspect_ai on hermes-exec: `sandbox="hermes"` or `sandbox=("hermes", "pool.yaml")` runs each sample in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_inspect.config import HermesConfig
    from hermes_inspect.sandbox import HermesSandboxEnvironment

__all__ = ["HermesConfig", "HermesSandboxEnvironment"]
SUPPORTED = "inspect_ai>=0.3.285,<0.4"

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        __all__,
        where=(
            "config",
            "sandbox",
        ),
        requires=SUPPORTED,
    )
