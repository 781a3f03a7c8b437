package memory

import (
	"os"
	"sync/atomic"
	"syscall"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/ipc"
)

// Losses counts the processes that were ended for want of memory.
type OOMCounter struct {
	counter       *os.File // of the kernel's
	own           bool     // it counts this slot's only
	limit         int64    // that a watchdog holds, 0 for none
	half          int64    // of the memory that there is for the slot
	watchdogKills atomic.Int64
	// elsewhere counts ends by SIGKILL of processes that are of no command any
	// more, and of commands that were reported as out of memory.
	others atomic.Int64
}

// Mark is what was counted when a command started.
type Mark struct {
	kills, watchdogKills int64 // in all, and by the watchdog
	others               int64
}

// Open finds the counter for a slot with these groups; alone says that the slot
// has the sandbox for itself.
func (l *OOMCounter) Open(joins []cgroup.Join, rooms cgroup.Quotas, limit int64, alone bool) {
	l.counter, l.own = cgroup.OOMFile(joins)
	l.own = l.own || alone
	l.limit = limit
	most := min(rooms.Memory.Limit(), rooms.SandboxMemory.Limit())
	if limit > 0 {
		most = min(most, limit)
	}
	l.half = most / 2
}

// Mark is called before a command starts.
func (l *OOMCounter) Mark() Mark {
	kills, _ := cgroup.ReadOOM(l.counter)
	watched := l.watchdogKills.Load()
	return Mark{kills: kills + watched, watchdogKills: watched, others: l.others.Load()}
}

// CountOther is called for an end by SIGKILL of what is no part of a command.
func (l *OOMCounter) CountOther() { l.others.Add(1) }

// CountWatchdogKill is called when the watchdog ends a process.
func (l *OOMCounter) CountWatchdogKill() { l.watchdogKills.Add(1) }

// IsOutOfMemory says whether the command with this exit lost a process because
// there was no memory: itself, when it was ended by a SIGKILL that is not ours,
// or a part of it. The end of a part is not seen but inferred: from the slot's
// own count where no other command ran meanwhile, else from a part that had
// more than half of all memory, since the kernel ends the largest process.
func (l *OOMCounter) IsOutOfMemory(m Mark, exit ipc.Exit, killed, alone bool) bool {
	itself := exit.ExitCode == 128+int(syscall.SIGKILL) && !killed
	largest := exit.MaxRSS > l.half && exit.MaxRSS > ownPeak()
	alone = alone && (l.own || l.limit > 0)
	if !itself && !largest && !alone {
		return false
	}
	count, ok := cgroup.ReadOOM(l.counter)
	if !ok && l.limit == 0 {
		return false
	}
	watched := l.watchdogKills.Load()
	kills := count + watched - m.kills
	switch {
	case kills <= 0:
		return false
	case itself:
		l.others.Add(1)
		return true
	case largest:
		return true
	case !l.own:
		kills = watched - m.watchdogKills
	}
	if !killed {
		kills -= l.others.Load() - m.others
	}
	return kills > 0
}

// ownPeak is the peak resident size of this process. The kernel reports at
// least as much for all that it starts.
func ownPeak() int64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return usage.Maxrss << 10
}
