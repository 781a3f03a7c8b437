"""The entry point that inspect_ai loads: it registers the sandbox `hermes`."""

from __future__ import annotations

from hermes_inspect.version import validate_version

validate_version()

from hermes_inspect.sandbox import HermesSandboxEnvironment  # noqa: E402 (only a supported version has its names)

__all__ = ["HermesSandboxEnvironment"]
