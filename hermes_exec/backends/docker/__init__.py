"""Boxes that are containers of a Docker daemon."""

from __future__ import annotations

from hermes_exec.backends.docker.backend import Config, create

__all__ = ["Config", "create"]
