"""What a user holds: a slot with its commands, sessions, processes, files and connections."""
