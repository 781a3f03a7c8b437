"""A small language model that runs in this process."""
