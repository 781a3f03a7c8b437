"""The command `hermes-exec agent`."""
