package users

// claim always succeeds: slots have no uids of their own on this system.
func claim(uint32) bool { return true }
