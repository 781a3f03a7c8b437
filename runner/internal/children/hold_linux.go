package children

import (
	"syscall"
	"time"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/proc"
)

// AwaitShortly waits for the end of a command on the thread that has started it, so that no other
// thread has to wake up. It returns nil if the command still runs, or if the reaper has its status
// and reports the exit.
//
// Not the obvious code: see docs/why-not-obvious.md ("Holding the reply for 5 ms").
func (t *Table) AwaitShortly(c *Command, most time.Duration) *ipc.Exit {
	var s status
	if !waitForEnd(c.PID, most) {
		t.Wake()
		return nil
	}
	if pid, err := syscall.Wait4(c.PID, &s.wait, syscall.WNOHANG|wAll, &s.usage); err != nil || pid != c.PID {
		t.Wake()
		return nil
	}
	t.recordEnd(c.PID, s)
	if !initproc.HasNoChildren() {
		t.Wake() // the reaper waits for children that the command left
	}
	exit := t.exitOf(c, s)
	return &exit
}

func waitForEnd(pid int, most time.Duration) bool {
	fd, err := proc.PidfdOpen(pid)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	return initproc.WaitReadable(fd, most)
}
