package agent

import (
	"syscall"
	"time"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/proc"
)

// awaitShortly waits for the end of a command on the thread that has started
// it, so that no other thread need be woken. It returns nil when the command
// still runs, or when the reaper has its status and reports its end.
func (a *agent) awaitShortly(c *command, most time.Duration) *ipc.Exit {
	var s status
	if !endsWithin(c.pid, most) {
		a.table.wake()
		return nil
	}
	if pid, err := syscall.Wait4(c.pid, &s.wait, syscall.WNOHANG|wAll, &s.usage); err != nil || pid != c.pid {
		a.table.wake()
		return nil
	}
	a.table.reaped(c.pid, s)
	if !initproc.Childless() {
		a.table.wake() // the reaper waits for the children that it left
	}
	exit := a.exitOf(c, s)
	return &exit
}

func endsWithin(pid int, most time.Duration) bool {
	fd, err := proc.PidfdOpen(pid)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	return initproc.Readable(fd, most)
}
