"""The attacks, by area."""
