"""Bugs in real packages to fix, scored by the packages' own tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_atropos.envs.swe_smith_oracle.env import ENV, SweSmithOracleConfig, SweSmithOracleEnv

__all__ = ["ENV", "SweSmithOracleConfig", "SweSmithOracleEnv"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Lazy, because the generator does not need atroposlib, whose import takes two seconds.
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.env"), name)
