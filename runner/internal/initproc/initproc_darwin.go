package initproc

import "syscall"

const lastSignal = syscall.Signal(31)

func protect(bool) {}

// ResetChildSignal does nothing on this system.
func ResetChildSignal() {}
