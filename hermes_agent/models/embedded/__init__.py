"""A small model that runs in this process."""
