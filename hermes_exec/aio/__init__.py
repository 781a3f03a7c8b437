"""Additions to anyio: event loops, detached tasks, byte streams and the portal for blocking callers."""
