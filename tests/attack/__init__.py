"""A tenant that attacks: one table of attacks, fired on every rung, from which docs/isolation.md is generated."""
