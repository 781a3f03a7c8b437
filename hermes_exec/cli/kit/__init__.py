"""Code that the commands share, also commands of other packages."""
