package initproc

import "syscall"

// IgnoreSignals does nothing on this system, which has no pid namespaces.
func IgnoreSignals() {}

func ignore(...syscall.Signal) {}
