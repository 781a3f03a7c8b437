"""The command line `hermes-exec`. Imports point from here to everything else, never back."""
