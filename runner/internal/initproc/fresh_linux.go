package initproc

import (
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

const (
	prSetTimerSlack = 29
	prGetTimerSlack = 30

	lazyTimerSlack    = time.Millisecond
	defaultTimerSlack = 50 * time.Microsecond

	sigSetMask = 2

	freshMark = "HERMES_EXEC_FRESH"
)

// StartFresh executes the program once more if its first thread lacks one of these settings, which
// its threads, the agents and the commands inherit:
//
//   - Timers may fire up to 1 ms late (timer slack). Otherwise the Go runtime's monitor thread
//     wakes every 20 µs while work is pending, which with one process a slot took more time than
//     the starts of the commands.
//   - No signal is blocked: commands inherit blocked signals, and could not be ended by them.
//
// Not the obvious code: see docs/why-not-obvious.md ("Timer slack of 1 ms").
func StartFresh() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, tried := os.LookupEnv(freshMark)
	_ = os.Unsetenv(freshMark)
	slack, _, _ := syscall.RawSyscall(syscall.SYS_PRCTL, prGetTimerSlack, 0, 0)
	if blocked := unblockSignals(); tried || blocked == 0 && time.Duration(slack) == lazyTimerSlack {
		return
	}
	setSlack(lazyTimerSlack)
	// If this fails, the program continues as it is.
	_ = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), freshMark+"=1"))
}

// UsePreciseTimers sets the system's default timer slack for the calling thread and the processes
// that it starts.
func UsePreciseTimers() { setSlack(defaultTimerSlack) }

func setSlack(d time.Duration) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, uintptr(d), 0)
}

// unblockSignals unblocks all signals for the calling thread, and returns those that were blocked.
func unblockSignals() uint64 {
	var none, before uint64
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetMask,
		uintptr(unsafe.Pointer(&none)), uintptr(unsafe.Pointer(&before)), unsafe.Sizeof(none), 0, 0)
	return before
}
