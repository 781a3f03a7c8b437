package initproc

import (
	"syscall"
	"unsafe"
)

const (
	lastSignal = syscall.Signal(64)

	prSetDumpable       = 4
	prSetChildSubreaper = 36
	prGetChildSubreaper = 37
)

// DeafToChildren has the end of a child interrupt no thread, for a program that
// waits for its children: what the kernel does by itself is nothing, and the
// runtime's handler would do no more.
func DeafToChildren() {
	var byDefault [4]uint64 // struct sigaction of the kernel
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGCHLD),
		uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
}

// Subreaper is true when orphans below this process become its children.
func Subreaper() bool {
	var set int32
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prGetChildSubreaper, uintptr(unsafe.Pointer(&set)), 0)
	return errno == 0 && set == 1
}

func protect(subreaper bool) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	if subreaper {
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	}
}
