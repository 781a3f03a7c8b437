"""Measures this library beside the alternatives: `python -m benchmarks.run` writes RESULTS.md and its charts."""
