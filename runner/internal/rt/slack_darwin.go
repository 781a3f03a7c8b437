package rt

// LazyTimers has nothing to do here.
func LazyTimers() {}

// LazyWatcher has nothing to do here.
func LazyWatcher() {}

// OwnTimers has nothing to do here.
func OwnTimers() {}
