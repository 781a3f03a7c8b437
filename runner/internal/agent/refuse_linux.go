package agent

import (
	"fmt"
	"slices"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/program"
)

// minStartMemory is about the memory that a start needs, in bytes.
const minStartMemory = 2 << 20

// explainExhaustion returns which limit this slot's tenant has used up, after a start failed with
// errno: a limit of the slot, or a limit of the sandbox of which the slot has most. It returns ""
// if the tenant is not the cause.
func (a *agent) explainExhaustion(errno syscall.Errno) string {
	limits := a.setup.Limits
	switch errno {
	case syscall.EAGAIN:
		switch {
		case a.quotas.PIDs.Available() <= 0, a.isOutOfTasks(), a.isOutOfNumbers():
			return fmt.Sprintf("the slot has all of its %d processes", *limits.PIDs)
		case a.quotas.SandboxPIDs.Available() <= 0 && a.ownsMostTasks():
			return "the sandbox may have no more processes"
		}
	case syscall.ENOMEM:
		switch {
		case a.quotas.Memory.Available() < minStartMemory && limits.MemoryMB != nil:
			return fmt.Sprintf("the slot has used its %d MiB of memory", *limits.MemoryMB)
		case a.quotas.SandboxMemory.Available() < minStartMemory && a.setup.Level == isolation.Exclusive:
			return "the sandbox has used all of its memory"
		}
	}
	return ""
}

// ownsMostTasks reports whether the slot has the sandbox for itself or has more of its processes
// than all other slots together.
func (a *agent) ownsMostTasks() bool {
	if a.setup.Level == isolation.Exclusive {
		return true
	}
	own, others := a.tenants.CountTasks()
	if a.setup.View.Pids {
		others = a.quotas.SandboxPIDs.Limit() / 2 // other slots are not visible here
	}
	return own > others
}

// isOutOfTasks reports whether the slot's user has about all the tasks of its rlimit. The tasks are
// not counted at one moment, so three quarters are enough.
func (a *agent) isOutOfTasks() bool {
	if a.setup.Limits.PIDs == nil || !slices.Contains(a.setup.RLimits, "pids") {
		return false
	}
	own, _ := a.tenants.CountTasks()
	return own*4 >= *a.setup.Limits.PIDs*3
}

// isOutOfNumbers reports whether a slot with a root of its own has used up its process numbers. As
// in isOutOfTasks, three quarters are enough.
func (a *agent) isOutOfNumbers() bool {
	most := a.setup.View.MaxPIDs
	return most > 0 && a.tenants.CountNumbers()*4 >= most*3
}

// refuse turns a failed start into a result or an error. Failures of the program or of the tenant
// are results, failures of the system are errors. blame is the limit that the tenant has used up;
// it is reported as a shell would.
func (a *agent) refuse(l *launch, errno syscall.Errno, blame string) *failure {
	if blame != "" {
		return &failure{code: 126, reason: "cannot fork: " + errno.Error() + ": " + blame}
	}
	switch errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC:
		return &failure{err: newExhaustedError("the sandbox or its host cannot start a process; this slot is not the "+
			"cause", errno)}
	}
	if err := program.CheckDirectory(l.cwd); err != nil {
		return newDirectoryFailure(l.cwd, err)
	}
	return newProgramFailure(l.argv[0], errno, true)
}

func newExhaustedError(message string, err error) error {
	return &ipc.Error{Kind: "exhausted", Message: message + ": " + err.Error()}
}
