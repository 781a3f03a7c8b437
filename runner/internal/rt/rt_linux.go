package rt

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
