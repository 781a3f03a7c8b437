"""The environments: one module each, with its class as `ENV`."""
