"""What the commands share, those of other packages too."""
