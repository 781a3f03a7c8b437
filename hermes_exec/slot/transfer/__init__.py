"""Transfer of files and trees between this host and a slot, as validated archives."""
