package rt

// StartFresh has nothing to do here.
func StartFresh() {}
