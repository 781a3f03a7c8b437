package initproc

// StartFresh has nothing to do here.
func StartFresh() {}

// PromptTimers is for Linux.
func PromptTimers() {}
