"""Hostile bytes for both ends: decoders, whole conversations, and the corpus of what was found."""
