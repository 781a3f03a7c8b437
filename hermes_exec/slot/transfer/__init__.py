"""Files and whole trees between this host and a slot, as archives that are checked."""
