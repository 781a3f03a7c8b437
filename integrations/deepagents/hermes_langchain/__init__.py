"""deepagents on hermes-exec: `create_deep_agent(backend=HermesSandbox(slot))` works in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_langchain.sandbox import HermesSandbox

__all__ = ["HermesSandbox"]
SUPPORTED = "deepagents>=0.7,<0.8"

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, where=("sandbox",), requires=SUPPORTED)
