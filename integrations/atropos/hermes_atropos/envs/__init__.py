"""The environments. Each is a module with its class as `ENV`."""
