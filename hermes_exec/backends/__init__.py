"""Backends: start a box, open a byte stream into it, end it. Nothing else."""
