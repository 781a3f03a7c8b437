"""`hermes-exec batch`: run a file of prompts and view its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_exec._lazy import lazy_attributes

if TYPE_CHECKING:
    from hermes_batch.cli.commands import app

__all__ = ["app"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, where=("commands",))
