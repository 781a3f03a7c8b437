"""Which tools there are: their schemas, sets and distributions, and those of the host."""
