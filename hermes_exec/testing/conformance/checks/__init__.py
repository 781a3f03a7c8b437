"""The behaviours, one module a theme."""
