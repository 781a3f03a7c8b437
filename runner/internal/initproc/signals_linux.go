package initproc

import (
	"syscall"
	"unsafe"
)

// IgnoreSignals takes back every handler of this program, which is the init of a
// pid namespace: the kernel drops signals from within that are not handled, and
// a tenant that is root may send any. From then on the Go runtime does without
// signals of its own.
func IgnoreSignals() {
	var byDefault [32]byte // struct sigaction: SIG_DFL, no flags
	for n := uintptr(1); n <= 64; n++ {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, n, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	}
}
