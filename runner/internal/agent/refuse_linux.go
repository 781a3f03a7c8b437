package agent

import (
	"fmt"
	"slices"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/program"
)

// minStartMemory is about what a start needs, in bytes.
const minStartMemory = 2 << 20

// explainExhaustion says, where a start failed with errno, what this slot's tenant has
// used up: a limit of the slot, or one of the sandbox that it has for itself or
// has taken most of. Empty when it is not the tenant's doing.
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

// ownsMostTasks says whether the slot has the sandbox for itself or has taken more of its
// processes than all other slots.
func (a *agent) ownsMostTasks() bool {
	if a.setup.Level == isolation.Exclusive {
		return true
	}
	own, others := a.tenants.CountTasks()
	if a.setup.View.Pids {
		others = a.quotas.SandboxPIDs.Limit() / 2 // the others are not visible here
	}
	return own > others
}

// isOutOfTasks says whether the slot's user has all the tasks that its rlimit
// leaves it. They are not counted in one moment, so most of them are enough.
func (a *agent) isOutOfTasks() bool {
	if a.setup.Limits.PIDs == nil || !slices.Contains(a.setup.RLimits, "pids") {
		return false
	}
	own, _ := a.tenants.CountTasks()
	return own*4 >= *a.setup.Limits.PIDs*3
}

// isOutOfNumbers says whether a slot with a root of its own has used up the process
// numbers that it has. As above, most of them are enough.
func (a *agent) isOutOfNumbers() bool {
	most := a.setup.View.MaxPIDs
	return most > 0 && a.tenants.CountNumbers()*4 >= most*3
}

// refuse tells a failure of the program or of the tenant, which are results,
// from one of the system. blame is what the tenant has used up: that is reported
// as a shell would.
func (a *agent) refuse(l *launch, errno syscall.Errno, blame string) *failure {
	if blame != "" {
		return &failure{code: 126, reason: "cannot fork: " + errno.Error() + ": " + blame}
	}
	switch errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC:
		return &failure{err: newExhaustedError("no process can be started, and not because of this slot", errno)}
	}
	if err := program.CheckDirectory(l.cwd); err != nil {
		return newDirectoryFailure(l.cwd, err)
	}
	return newProgramFailure(l.argv[0], errno, true)
}

func newExhaustedError(message string, err error) error {
	return &ipc.Error{Kind: "exhausted", Message: message + ": " + err.Error()}
}
