"""Faults between a pool and its boxes, by a seeded schedule: what a rollout does when streams and boxes break."""

from hermes_exec.testing.faults.backend import faulty
from hermes_exec.testing.faults.schedule import BOX_FAULTS, LAUNCH_FAULTS, STREAM_FAULTS, Faults, Injected

__all__ = ["BOX_FAULTS", "LAUNCH_FAULTS", "STREAM_FAULTS", "Faults", "Injected", "faulty"]
