package rt

// LazyTimers has nothing to do here.
func LazyTimers() {}
