package initproc

import (
	"syscall"
	"unsafe"
)

// The handlers and what they return to, of handlers_linux_*.s.
var disregardHandler, signalReturn uintptr

const saSiginfo, saRestorer, saOnStack, saRestart = 0x4, 0x04000000, 0x08000000, 0x10000000

// sigaction is that of the kernel.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// handle replaces the runtime's handler of a signal; 0 is the default action.
func handle(n syscall.Signal, handler uintptr) {
	var action sigaction
	if handler != 0 {
		action = sigaction{handler: handler, flags: saSiginfo | saOnStack | saRestart, mask: ^uint64(0)}
		if signalReturn != 0 {
			action.restorer, action.flags = signalReturn, action.flags|saRestorer
		}
	}
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// defaultSignals are the signals that the kernel drops for the init of a pid
// namespace when they have their default action: it ends no process at once (a
// core would be dumped first), or none at all.
const defaultSignals = 1<<syscall.SIGQUIT | 1<<syscall.SIGILL | 1<<syscall.SIGTRAP | 1<<syscall.SIGABRT |
	1<<syscall.SIGBUS | 1<<syscall.SIGFPE | 1<<syscall.SIGSEGV | 1<<syscall.SIGXCPU | 1<<syscall.SIGXFSZ |
	1<<syscall.SIGSYS | 1<<syscall.SIGCHLD | 1<<syscall.SIGCONT | 1<<syscall.SIGURG | 1<<syscall.SIGWINCH |
	1<<syscall.SIGTSTP | 1<<syscall.SIGTTIN | 1<<syscall.SIGTTOU

// IgnoreSignals takes back every handler of this program, which is the init of a
// pid namespace: a tenant that is root may send any signal, and some end a Go
// program. From then on the Go runtime does without signals of its own.
//
// The kernel drops signals from within that have their default action, but not
// while the first thread blocks them, as in a fork: those that end a process at
// once are then taken by another thread. They get a handler that does nothing.
func IgnoreSignals() {
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if n < 32 && defaultSignals&(1<<n) != 0 {
			handle(n, 0)
		} else {
			handle(n, disregardHandler)
		}
	}
}

// ignore is for the signals that the runtime leaves alone.
func ignore(numbers ...syscall.Signal) {
	for _, n := range numbers {
		handle(n, disregardHandler)
	}
}
