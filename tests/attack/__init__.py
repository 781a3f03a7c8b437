"""Attacks of a tenant: one table, run on every level, from which docs/evidence/attacks.md is generated."""
