"""What `benchmarks.doors` measures of each target."""
