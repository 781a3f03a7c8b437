package users

// claim is of Linux: slots have no uids of their own here.
func claim(uint32) bool { return true }
