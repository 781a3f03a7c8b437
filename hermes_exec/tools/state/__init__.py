"""The state that one Toolbox keeps between calls."""
