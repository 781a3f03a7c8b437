"""Files of checkpoints: reading and writing them, without a pool."""
