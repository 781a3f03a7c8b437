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

// ResetChildSignal sets SIGCHLD to its default action, so that the end of a child interrupts no
// thread. Programs that wait for their children themselves do not need the Go runtime's handler,
// which would do nothing.
func ResetChildSignal() {
	var byDefault [4]uint64 // struct sigaction of the kernel
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGCHLD),
		uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
}

// IsSubreaper reports whether orphans below this process become its children.
func IsSubreaper() bool {
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
