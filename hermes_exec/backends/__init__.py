"""Backends: start a sandbox, open a byte stream into it, end it. Nothing else."""
