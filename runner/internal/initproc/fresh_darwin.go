package initproc

// StartFresh does nothing on this system.
func StartFresh() {}

// UsePreciseTimers does nothing on this system.
func UsePreciseTimers() {}
