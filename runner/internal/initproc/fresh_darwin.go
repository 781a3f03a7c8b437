package initproc

// StartFresh has nothing to do here.
func StartFresh() {}

// UsePreciseTimers is for Linux.
func UsePreciseTimers() {}
