package agent

import (
	"syscall"
	"time"

	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/limits"
)

const (
	// maxStartTries bounds the attempts to start a command when the kernel had no room for a
	// process. Where processes come and go all the time, one of the attempts either succeeds or
	// sees that the slot has reached its limit.
	maxStartTries = 8
	startPause    = time.Millisecond
	// busyTimeout bounds the wait while another fork of this agent holds a just written program
	// open, until its exec.
	busyTimeout = 100 * time.Millisecond
)

// fork starts a command. It tries again as long as the tenant itself is not known to have used up
// its limits.
func (a *agent) fork(l *launch) (*children.Command, *failure) {
	c := a.table.Begin(l.token)
	tries, pause := 1, time.Millisecond
	for {
		pid, err := a.tryFork(c, l)
		if err == nil {
			c.PID = pid
			return c, nil
		}
		errno, ok := errnoOf(err)
		switch {
		case !ok:
			errno = syscall.EINVAL
		case errno == syscall.ETXTBSY && pause < busyTimeout:
			time.Sleep(pause)
			pause *= 2
			continue
		}
		blame := a.explainExhaustion(errno)
		if blame == "" && errno == syscall.EAGAIN && tries < maxStartTries {
			tries++
			time.Sleep(startPause)
			continue
		}
		a.table.Abandon(c)
		return nil, a.refuse(l, errno, blame)
	}
}

func (a *agent) tryFork(c *children.Command, l *launch) (int, error) {
	a.table.Expect(c)
	a.score.Raise() // the command inherits the score
	defer a.score.Lower()
	if a.childLimits {
		return a.forkLimited(c, l)
	}
	return syscall.ForkExec(l.path, l.argv, l.attr)
}

// forkLimited sets limits that the agent itself could not live with (open files, CPU time) while
// the command is stopped at its first instruction, so that the command never runs without them.
func (a *agent) forkLimited(c *children.Command, l *launch) (int, error) {
	l.attr.Sys.Ptrace = true
	pid, err := syscall.ForkExec(l.path, l.argv, l.attr)
	if err != nil {
		return 0, err
	}
	a.table.AwaitStop(pid, c)
	limit := func() error { return limits.SetChildLimits(pid, a.setup.Limits) }
	if a.setup.Switch && l.user.UID != 0 {
		// Without CAP_SYS_RESOURCE only the same user can set the limits.
		err = a.tenants.AsUser(l.user, limit)
	} else {
		err = limit()
	}
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if detach := syscall.PtraceDetach(pid); err == nil && detach != nil && detach != syscall.ESRCH {
		err = detach
	}
	return pid, err
}
