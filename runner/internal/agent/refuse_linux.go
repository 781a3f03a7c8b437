package agent

import (
	"fmt"
	"slices"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/program"
)

// leastMemory is about what a start needs, in bytes.
const leastMemory = 2 << 20

// exhaustedBySlot says, where a start failed with errno, what this slot's tenant has
// used up: a limit of the slot, or one of the sandbox that it has for itself or
// has taken most of. Empty when it is not the tenant's doing.
func (a *agent) exhaustedBySlot(errno syscall.Errno) string {
	limits := a.setup.Limits
	switch errno {
	case syscall.EAGAIN:
		switch {
		case a.rooms.PIDs.Left() <= 0, a.uidFull(), a.numbersFull():
			return fmt.Sprintf("the slot has all of its %d processes", *limits.PIDs)
		case a.rooms.SandboxPIDs.Left() <= 0 && a.ownsMostTasks():
			return "the sandbox may have no more processes"
		}
	case syscall.ENOMEM:
		switch {
		case a.rooms.Memory.Left() < leastMemory && limits.MemoryMB != nil:
			return fmt.Sprintf("the slot has used its %d MiB of memory", *limits.MemoryMB)
		case a.rooms.SandboxMemory.Left() < leastMemory && a.setup.Level == isolation.Exclusive:
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
		others = a.rooms.SandboxPIDs.Most() / 2 // the others are not visible here
	}
	return own > others
}

// uidFull says whether the slot's user has all the tasks that its rlimit
// leaves it. They are not counted in one moment, so most of them are enough.
func (a *agent) uidFull() bool {
	if a.setup.Limits.PIDs == nil || !slices.Contains(a.setup.RLimits, "pids") {
		return false
	}
	own, _ := a.tenants.CountTasks()
	return own*4 >= *a.setup.Limits.PIDs*3
}

// numbersFull says whether a slot with a root of its own has used up the process
// numbers that it has. As above, most of them are enough.
func (a *agent) numbersFull() bool {
	most := a.setup.View.MostPIDs
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
		return &failure{err: exhausted("no process can be started, and not because of this slot", errno)}
	}
	if err := program.Enterable(l.cwd); err != nil {
		return cannotEnter(l.cwd, err)
	}
	return cannot(l.argv[0], errno, true)
}

func exhausted(what string, err error) error {
	return &ipc.Error{Kind: "exhausted", Message: what + ": " + err.Error()}
}
