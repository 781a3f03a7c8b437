package initproc

// StartFresh has nothing to do here.
func StartFresh() {}
