"""Exports of records as training data."""
