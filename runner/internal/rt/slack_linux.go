package rt

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

const (
	prSetTimerSlack = 29
	prGetTimerSlack = 30

	lazySlack   = time.Millisecond
	systemSlack = 50 * time.Microsecond

	slackMark = "HERMES_EXEC_LAZY_TIMERS"
)

// LazyTimers lets the kernel end every sleep of this process and of the agents
// that it starts up to a millisecond late. The Go runtime has a thread that
// looks around every 20 µs while anything is going on, which with one process a
// slot took more time than the commands' own starts. The slack of a thread is
// that of the one that made it: the program is executed once more for it.
func LazyTimers() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, tried := os.LookupEnv(slackMark)
	_ = os.Unsetenv(slackMark)
	if slack, _, _ := syscall.RawSyscall(syscall.SYS_PRCTL, prGetTimerSlack, 0, 0); tried || time.Duration(slack) == lazySlack {
		return
	}
	setSlack(lazySlack)
	// It goes on as it is where this cannot be done.
	_ = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), slackMark+"=1"))
}

// PromptTimers gives the calling thread, and what it starts, the slack that the
// system begins with.
func PromptTimers() { setSlack(systemSlack) }

func setSlack(d time.Duration) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, uintptr(d), 0)
}
