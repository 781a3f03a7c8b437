"""Edits of files in both patch formats. The text to replace may differ slightly from the file."""
