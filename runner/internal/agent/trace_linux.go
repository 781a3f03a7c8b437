package agent

import (
	"syscall"

	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
)

// forkExec starts a command. Limits that the agent could not live with itself
// (open files, CPU time) are set while the command is stopped at its first
// instruction, so that it never runs without them.
func (a *agent) forkExec(c *command, path string, argv []string, attr *syscall.ProcAttr,
	user isolation.User) (int, error) {
	if !a.childLimits {
		return syscall.ForkExec(path, argv, attr)
	}
	attr.Sys.Ptrace = true
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, err
	}
	a.table.untilStopped(pid, c)
	limit := func() error { return limits.SetChild(pid, a.setup.Limits) }
	if a.setup.Switch && user.UID != 0 {
		// Without CAP_SYS_RESOURCE limits can be set by the same user only.
		err = a.asUser(user, limit)
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

// stopped is called by the reaper when a child has stopped: a traced one has
// reached its exec.
func (t *table) stopped(pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.inflight) > 0 {
		t.traced[pid] = true
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// untilStopped waits until pid has stopped or ended.
func (t *table) untilStopped(pid int, c *command) {
	t.wake()
	for {
		t.mu.Lock()
		stopped := t.traced[pid]
		_, ended := t.reapedEarly(pid, c)
		delete(t.traced, pid)
		changed := t.changed
		t.mu.Unlock()
		if stopped || ended {
			return
		}
		<-changed
	}
}
