"""Looking into the slots that other programs of this user hold."""
