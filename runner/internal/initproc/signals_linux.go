package initproc

import (
	"syscall"
	"unsafe"
)

// disregardHandler and signalReturn are the handler and its return address from handlers_linux_*.s.
var disregardHandler, signalReturn uintptr

const saSiginfo, saRestorer, saOnStack, saRestart = 0x4, 0x04000000, 0x08000000, 0x10000000

// sigaction is the kernel's struct of this name.
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

// defaultSignals are the signals that the kernel drops for the first process of a pid namespace
// when they have their default action. They do not end a process at once (a core would be dumped
// first), or not at all.
const defaultSignals = 1<<syscall.SIGQUIT | 1<<syscall.SIGILL | 1<<syscall.SIGTRAP | 1<<syscall.SIGABRT |
	1<<syscall.SIGBUS | 1<<syscall.SIGFPE | 1<<syscall.SIGSEGV | 1<<syscall.SIGXCPU | 1<<syscall.SIGXFSZ |
	1<<syscall.SIGSYS | 1<<syscall.SIGCHLD | 1<<syscall.SIGCONT | 1<<syscall.SIGURG | 1<<syscall.SIGWINCH |
	1<<syscall.SIGTSTP | 1<<syscall.SIGTTIN | 1<<syscall.SIGTTOU

// IgnoreSignals removes every signal handler of this program, which is the first process of a pid
// namespace. A tenant that is root may send any signal, and some end a Go program. Afterwards the
// Go runtime does without its own signals.
//
// The kernel drops signals from within the namespace that have their default action, but not while
// the first thread blocks them, as in a fork. Signals that end a process at once would then reach
// another thread. These get a handler that does nothing.
func IgnoreSignals() {
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if n < 32 && defaultSignals&(1<<n) != 0 {
			handle(n, 0)
		} else {
			handle(n, disregardHandler)
		}
	}
}

// ignore handles signals that the runtime does not handle.
func ignore(numbers ...syscall.Signal) {
	for _, n := range numbers {
		handle(n, disregardHandler)
	}
}
