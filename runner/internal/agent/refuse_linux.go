package agent

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/program"
)

const (
	// startTries is how often a start that found no room is tried. Where
	// processes come and go all the time, some of the tries either succeed or
	// see that the limit is reached.
	startTries = 8
	startPause = time.Millisecond
	// leastMemory is about what a start needs, in bytes.
	leastMemory = 2 << 20
)

// refusal is why no process could be started. blame is set where the tenant of
// this slot has used up the resource: the refusal is then reported as a shell
// would.
type refusal struct {
	errno syscall.Errno
	blame string
}

// exhaustion finds out what a slot or its box has used up.
type exhaustion struct {
	*tenancy
	killer *killer
	rooms  cgroup.Rooms
}

// retry tries a start again that failed for want of room, until it is known
// that the tenant itself has taken that.
func (e *exhaustion) retry(start func() (int, error), err error) (int, refusal) {
	for try := 1; ; try++ {
		errno, ok := errnoOf(err)
		if !ok {
			errno = syscall.EINVAL
		}
		if blame := e.exhaustedBySlot(errno); blame != "" {
			return 0, refusal{errno, blame}
		}
		if errno != syscall.EAGAIN || try == startTries {
			return 0, refusal{errno: errno}
		}
		time.Sleep(startPause)
		pid, again := start()
		if again == nil {
			return pid, refusal{}
		}
		err = again
	}
}

// exhaustedBySlot says, where a start failed with errno, what this slot's tenant has
// used up: a limit of the slot, or one of the box that it has for itself or
// has taken most of. Empty when it is not the tenant's doing.
func (e *exhaustion) exhaustedBySlot(errno syscall.Errno) string {
	limits := e.setup.Limits
	switch errno {
	case syscall.EAGAIN:
		switch {
		case e.rooms.PIDs.Left() <= 0, e.uidFull(), e.numbersFull():
			return fmt.Sprintf("the slot has all of its %d processes", *limits.PIDs)
		case e.rooms.BoxPIDs.Left() <= 0 && e.ownsMostTasks():
			return "the box may have no more processes"
		}
	case syscall.ENOMEM:
		switch {
		case e.rooms.Memory.Left() < leastMemory && limits.MemoryMB != nil:
			return fmt.Sprintf("the slot has used its %d MiB of memory", *limits.MemoryMB)
		case e.rooms.BoxMemory.Left() < leastMemory && e.setup.Level == isolation.Box:
			return "the box has used all of its memory"
		}
	}
	return ""
}

// ownsMostTasks says whether the slot has the box for itself or has taken more of its
// processes than all other slots.
func (e *exhaustion) ownsMostTasks() bool {
	if e.setup.Level == isolation.Box {
		return true
	}
	own, others := e.tasks()
	if e.setup.View.Pids {
		others = e.rooms.BoxPIDs.Most() / 2 // the others are not visible here
	}
	return own > others
}

// uidFull says whether the slot's user has all the tasks that its rlimit
// leaves it. They are not counted in one moment, so most of them are enough.
func (e *exhaustion) uidFull() bool {
	if e.setup.Limits.PIDs == nil || !slices.Contains(e.setup.RLimits, "pids") {
		return false
	}
	own, _ := e.tasks()
	return own*4 >= *e.setup.Limits.PIDs*3
}

// numbersFull says whether a slot with a root of its own has used up the process
// numbers that it has, which zombies hold too. As above, most of them are enough.
func (e *exhaustion) numbersFull() bool {
	if e.setup.View.MostPIDs == 0 {
		return false
	}
	used := int64(0)
	e.killer.killers.do(func() {
		buf := make([]byte, 8192)
		names, _ := proc.Numbers()
		for _, name := range names {
			p, _ := proc.ParseStat(proc.Read("/proc/"+name+"/stat", buf))
			used += max(1, p.Threads)
		}
	})
	return used*4 >= e.setup.View.MostPIDs*3
}

// tasks counts the threads of the slot's processes, and of those that other
// slots have started, where they are seen.
func (e *exhaustion) tasks() (own, others int64) {
	e.killer.killers.do(func() {
		all, err := e.snapshot()
		if err != nil {
			return
		}
		for _, p := range e.tenants(all) {
			own += p.Threads
		}
		for _, p := range all {
			if p.Start >= e.setup.Since && p.PID != e.setup.ServePID && p.Parent != e.setup.ServePID {
				others += p.Threads
			}
		}
	})
	return own, others - own
}

// refused tells a failure of the program or of the tenant, which are results,
// from one of the system.
func (a *agent) refused(s ipc.Spawn, cwd string, why refusal) outcome {
	if why.blame != "" {
		return outcome{master: -1, code: 126, reason: "cannot fork: " + why.errno.Error() + ": " + why.blame}
	}
	switch why.errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC:
		return outcome{master: -1, err: exhausted("no process can be started, and not because of this slot", why.errno)}
	}
	if err := program.Enterable(cwd); err != nil {
		return outcome{master: -1, err: ipc.OSError("working directory "+strconv.Quote(cwd), cwd, err)}
	}
	return cannot(string(s.Argv[0]), why.errno, true)
}

func exhausted(what string, err error) error {
	return &ipc.Error{Kind: "exhausted", Message: what + ": " + err.Error()}
}
