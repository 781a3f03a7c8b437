"""Slots: their commands, sessions, processes, files and connections."""
