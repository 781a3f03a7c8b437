package memory

import (
	"os"
	"sync/atomic"
	"syscall"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/ipc"
)

// OOMCounter counts the processes that were killed for lack of memory.
type OOMCounter struct {
	counter       *os.File // of the kernel
	own           bool     // it counts this slot only
	limit         int64    // of the watchdog, 0 for none
	half          int64    // half of the slot's memory
	watchdogKills atomic.Int64
	// others counts processes that SIGKILL ended and that are part of no command, and commands that
	// were already reported as out of memory.
	others atomic.Int64
}

// Mark holds the counts at the start of a command.
type Mark struct {
	kills, watchdogKills int64 // in all, and by the watchdog
	others               int64
}

// Open finds the counter for a slot with these groups. alone means that the slot has the sandbox to
// itself.
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

// Mark returns the counts. It is called before a command starts.
func (l *OOMCounter) Mark() Mark {
	kills, _ := cgroup.ReadOOM(l.counter)
	watched := l.watchdogKills.Load()
	return Mark{kills: kills + watched, watchdogKills: watched, others: l.others.Load()}
}

// CountOther counts an end by SIGKILL of a process that is part of no command.
func (l *OOMCounter) CountOther() { l.others.Add(1) }

// CountWatchdogKill is called when the watchdog ends a process.
func (l *OOMCounter) CountWatchdogKill() { l.watchdogKills.Add(1) }

// IsOutOfMemory reports whether the command with this exit lost a process for lack of memory: its
// leader, ended by a SIGKILL that is not the agent's, or another process. The loss of another
// process is inferred: from the slot's own count if no other command ran meanwhile, else from a
// process that had more than half of all memory, because the kernel ends the largest process.
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

// ownPeak returns the peak resident size of this process. The kernel reports at least as much for
// every child.
func ownPeak() int64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return usage.Maxrss << 10
}
