"""The command line `hermes-exec`. It imports from all other packages; no package imports from it."""
