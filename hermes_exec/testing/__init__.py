"""Test tools for backends, also of other packages: the conformance suite, and pools with injected faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_exec.testing import conformance, faults

__all__ = ["conformance", "faults"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, (), modules=__all__)
