"""Faults between a pool and its sandboxes, by a seeded schedule: what a rollout does when streams and sandboxes
break.
"""

from hermes_exec.testing.faults.backend import faulty
from hermes_exec.testing.faults.schedule import LAUNCH_FAULTS, SANDBOX_FAULTS, STREAM_FAULTS, Faults, Injected

__all__ = ["LAUNCH_FAULTS", "SANDBOX_FAULTS", "STREAM_FAULTS", "Faults", "Injected", "faulty"]
