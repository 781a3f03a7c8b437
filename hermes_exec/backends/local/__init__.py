"""Boxes that are a process tree on this host."""

from __future__ import annotations

from hermes_exec.backends.local.backend import Config, create

__all__ = ["Config", "create"]
