"""The available tools: their schemas, toolsets and distributions, and host tools."""
