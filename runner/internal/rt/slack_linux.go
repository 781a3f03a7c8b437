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

	watchSlack  = 10 * time.Millisecond
	lazySlack   = time.Millisecond
	systemSlack = 50 * time.Microsecond

	slackMark = "HERMES_EXEC_LAZY_TIMERS"
)

// LazyTimers lets the kernel end every sleep of this process and of the agents
// that it starts up to a millisecond late, and those of the Go runtime's own
// watcher up to ten. That thread looks around every 20 µs while anything is
// going on, which with one process a slot took more time than the commands' own
// starts; with a slack of a millisecond it still took 6 % of a call. The slack
// of a thread is that of the one that made it: the program is executed once
// more for it, and the first thread then takes a smaller one for all to come.
func LazyTimers() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, tried := os.LookupEnv(slackMark)
	_ = os.Unsetenv(slackMark)
	if slack, _, _ := syscall.RawSyscall(syscall.SYS_PRCTL, prGetTimerSlack, 0, 0); tried || time.Duration(slack) == watchSlack {
		OwnTimers()
		return
	}
	LazyWatcher()
	// It goes on as it is where this cannot be done.
	_ = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), slackMark+"=1"))
}

// LazyWatcher gives the calling thread the slack that the watcher of a program
// which it starts is to have. That program calls OwnTimers.
func LazyWatcher() { setSlack(watchSlack) }

// OwnTimers gives the calling thread, and those that it makes, the slack for
// everything but the watcher.
func OwnTimers() { setSlack(lazySlack) }

// PromptTimers gives the calling thread, and what it starts, the slack that the
// system begins with.
func PromptTimers() { setSlack(systemSlack) }

func setSlack(d time.Duration) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, uintptr(d), 0)
}
