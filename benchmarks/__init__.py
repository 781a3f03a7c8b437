"""Benchmarks of this library and its alternatives: `python -m benchmarks.run` writes RESULTS.md and its charts."""
