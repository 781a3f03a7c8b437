"""Faults between a pool and its sandboxes by a seeded schedule, to test rollouts with broken streams and sandboxes."""

from hermes_exec.testing.faults.backend import faulty
from hermes_exec.testing.faults.schedule import LAUNCH_FAULTS, SANDBOX_FAULTS, STREAM_FAULTS, Faults, Injected

__all__ = ["LAUNCH_FAULTS", "SANDBOX_FAULTS", "STREAM_FAULTS", "Faults", "Injected", "faulty"]
