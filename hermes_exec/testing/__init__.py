"""What proves that a backend does as it should, and what breaks it: for tests of this library and of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazily

if TYPE_CHECKING:
    from hermes_exec.testing import conformance, faults

__all__ = ["conformance", "faults"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, (), modules=__all__)
