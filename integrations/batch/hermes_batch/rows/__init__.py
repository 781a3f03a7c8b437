"""Readers of rows: JSON lines, JSON arrays, CSV, Parquet, and data sets of the `datasets` library."""
