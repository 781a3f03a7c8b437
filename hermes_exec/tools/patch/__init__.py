"""Edits of files: both patch formats, found by text that need not match to the letter."""
