"""A tenant that attacks: one table of attacks, fired on every level, from which docs/isolation.md is generated."""
