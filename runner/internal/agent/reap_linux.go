package agent

import (
	"runtime"
	"syscall"

	"hermes-exec/runner/internal/initproc"
)

const wAll = 0x40000000

// reap waits for every child on a thread of its own: a thread that sleeps in
// wait4 learns of an end sooner than a signal handler does. It never returns.
func (a *agent) reap() {
	runtime.LockOSThread()
	for {
		var s status
		a.table.forked.Arm()
		next := -1
		if a.sweeps.Load() > 0 {
			next = a.countStray()
		}
		pid, err := syscall.Wait4(next, &s.wait, wAll, &s.usage)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			a.table.forked.Wait()
		case s.wait.Stopped():
			a.table.stopped(pid)
		default:
			if c := a.table.reaped(pid, s); c != nil {
				a.finish(c, s)
			} else if s.wait.Signaled() && s.wait.Signal() == syscall.SIGKILL {
				a.losses.Elsewhere()
			}
		}
	}
}

// countStray waits until a child has ended. If that is an orphan or of a
// command that is being killed, it is counted before it is reaped, so that none
// disappears uncounted during a sweep. It returns the pid, or -1.
func (k *killer) countStray() int {
	pid := initproc.AwaitDead()
	if pid <= 0 {
		return -1
	}
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	if c := k.table.byPID[pid]; c == nil || c.killed {
		k.strays.Add(1)
	}
	return pid
}
