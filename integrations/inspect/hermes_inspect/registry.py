"""The entry point that inspect_ai loads: it registers the sandbox `hermes`."""

from __future__ import annotations

from hermes_inspect import HermesSandboxEnvironment

__all__ = ["HermesSandboxEnvironment"]
