"""Shell commands: the terminal tool, background processes and their notices."""
