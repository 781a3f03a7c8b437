"""Answers the model calls of a harness that runs in a slot, and keeps what was sampled."""
