"""Answers the model calls of a harness that runs in a slot, and keeps what was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_agent.gateway.gateway import ModelGateway
    from hermes_agent.gateway.harnesses import Harness, harness
    from hermes_agent.gateway.options import Gateway
    from hermes_agent.gateway.program import ProgramResult
    from hermes_agent.gateway.tree import Captured, CapturedSequence, Node, SequenceScope

__all__ = [
    "Captured",
    "CapturedSequence",
    "Gateway",
    "Harness",
    "ModelGateway",
    "Node",
    "ProgramResult",
    "SequenceScope",
    "harness",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(
        __name__, __all__, where=("options", "harnesses", "program", "tree", "gateway")
    )
