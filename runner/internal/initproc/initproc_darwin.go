package initproc

import "syscall"

const lastSignal = syscall.Signal(31)

func protect(bool) {}

// ResetChildSignal has nothing to do here.
func ResetChildSignal() {}
