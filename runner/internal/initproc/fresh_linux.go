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

// StartFresh executes the program once more where its first thread lacks one of
// these settings, which its threads, the agents and the commands inherit:
//
//   - Every sleep may end up to a millisecond late. The Go runtime has a thread
//     that looks around every 20 µs while anything is going on, which with one
//     process a slot took more time than the commands' own starts.
//   - No signal is blocked. Where one was, no command could be ended by it.
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
	// Where that fails the program goes on as it is.
	_ = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), freshMark+"=1"))
}

// UsePreciseTimers gives the calling thread, and what it starts, the system's
// default timer slack.
func UsePreciseTimers() { setSlack(defaultTimerSlack) }

func setSlack(d time.Duration) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, uintptr(d), 0)
}

// unblockSignals unblocks all signals for the calling thread, and returns those
// that were blocked.
func unblockSignals() uint64 {
	var none, before uint64
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetMask,
		uintptr(unsafe.Pointer(&none)), uintptr(unsafe.Pointer(&before)), unsafe.Sizeof(none), 0, 0)
	return before
}
