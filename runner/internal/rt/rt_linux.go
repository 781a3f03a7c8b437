package rt

import "syscall"

const (
	lastSignal = syscall.Signal(64)

	prSetDumpable       = 4
	prSetChildSubreaper = 36
)

func protect(subreaper bool) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	if subreaper {
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	}
}
