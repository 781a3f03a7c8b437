"""deepagents on hermes-exec: `create_deep_agent(backend=HermesSandbox(slot))` works in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_langchain.sandbox import HermesSandbox

__all__ = ["HermesSandbox"]


def __getattr__(name: str) -> object:
    if name != "HermesSandbox":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hermes_langchain.version import validate_version

    validate_version()
    from hermes_langchain.sandbox import HermesSandbox

    return HermesSandbox
