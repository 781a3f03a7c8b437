package children

import (
	"runtime"
	"syscall"

	"hermes-exec/runner/internal/initproc"
)

const wAll = 0x40000000

// Reap waits for every child on a thread of its own and never returns. A thread that sleeps in
// wait4 learns of an exit sooner than a signal handler does.
//
// Not the obvious code: see docs/why-not-obvious.md ("Waiting in the kernel").
func (t *Table) Reap() {
	runtime.LockOSThread()
	for {
		var s status
		t.forked.Arm()
		next := -1
		if t.sweeps.Load() > 0 {
			next = t.countStray()
		}
		pid, err := syscall.Wait4(next, &s.wait, wAll, &s.usage)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			t.forked.Wait()
		case s.wait.Stopped():
			t.recordStop(pid)
		default:
			if c := t.recordEnd(pid, s); c != nil {
				t.announce(c, t.exitOf(c, s))
			} else if s.wait.Signaled() && s.wait.Signal() == syscall.SIGKILL {
				t.OOM.CountOther()
			}
		}
	}
}

// countStray waits until a child has ended. It counts an orphan, or a process of a command that is
// being killed, before it is reaped, so that none disappears uncounted during a sweep. It returns
// the pid, or -1.
func (t *Table) countStray() int {
	pid := initproc.WaitForDeadChild()
	if pid <= 0 {
		return -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.byPID[pid]; c == nil || c.killed {
		t.count.Add(1)
	}
	return pid
}

func maxRSS(u syscall.Rusage) int64 { return u.Maxrss << 10 }
