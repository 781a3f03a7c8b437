package agent

import (
	"syscall"

	"hermes-exec/runner/internal/cgroup"
	"hermes-exec/runner/internal/ipc"
)

// oomMark is what was counted when a command started.
type oomMark struct {
	kills, watched int64 // processes that were ended for want of memory: in all, and by the watchdog
	elsewhere      int64
	entries        int64 // of the table; its own
	shared         bool  // others ran when it started; the table's
}

func (m *oomMark) mark(a *agent) {
	kills, _ := cgroup.ReadOOM(a.oom)
	m.watched = a.watched.Load()
	m.kills, m.elsewhere = kills+m.watched, a.oomElsewhere.Load()
}

// lacked says whether the command with this exit lost a process because there
// was no memory: itself, when it was ended by a SIGKILL that is not ours, or a
// part of it. Nobody sees the ends of the parts, so that is concluded: from the
// slot's own count, where no other command ran meanwhile, or else from a part
// that had more than half of all memory, for the largest process is ended.
func (a *agent) lacked(m oomMark, exit ipc.Exit, killed, alone bool) bool {
	itself := exit.ExitCode == 128+int(syscall.SIGKILL) && !killed
	largest := exit.MaxRSS > a.half && exit.MaxRSS > ownPeak()
	alone = alone && (a.oomOwn || a.setup.Watch > 0)
	if !itself && !largest && !alone {
		return false
	}
	count, ok := cgroup.ReadOOM(a.oom)
	if !ok && a.setup.Watch == 0 {
		return false
	}
	watched := a.watched.Load()
	kills := count + watched - m.kills
	switch {
	case kills <= 0:
		return false
	case itself:
		a.oomElsewhere.Add(1)
		return true
	case largest:
		return true
	case !a.oomOwn:
		kills = watched - m.watched
	}
	if !killed {
		kills -= a.oomElsewhere.Load() - m.elsewhere
	}
	return kills > 0
}

// halfOfMemory is half of the memory that the slot may have, or its box.
func (a *agent) halfOfMemory() int64 {
	most := min(a.rooms.Memory.Most(), a.rooms.BoxMemory.Most())
	if a.setup.Watch > 0 {
		most = min(most, a.setup.Watch)
	}
	return most / 2
}

// ownPeak is what this process had resident at most. Whatever it starts is
// told to have had as much.
func ownPeak() int64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return maxRSS(usage)
}
