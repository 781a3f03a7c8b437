package agent

import (
	"runtime"
	"syscall"
)

const wAll = 0x40000000

// reap waits for every child on a thread of its own: a thread that sleeps in
// wait4 hears of a death sooner than a signal handler does. It never returns.
func (a *agent) reap() {
	runtime.LockOSThread()
	for {
		var s status
		a.table.forked.arm()
		pid, err := syscall.Wait4(-1, &s.wait, wAll, &s.usage)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			a.table.forked.wait()
		case s.wait.Stopped():
			a.table.stopped(pid)
		default:
			if c := a.table.reaped(pid, s); c != nil {
				a.finish(c, s)
			} else if s.wait.Signaled() && s.wait.Signal() == syscall.SIGKILL {
				a.oomElsewhere.Add(1)
			}
		}
	}
}
