package agent

import (
	"os"
	"sync"
	"sync/atomic"

	"hermes-exec/runner/internal/cgroup"
)

// platform is what only Linux gives an agent.
type platform struct {
	killers *pool    // threads with the slot's user rights, to look at processes and signal them
	oom     *os.File // counter of out-of-memory kills
	oomOwn  bool     // which counts this slot's only
	// oomElsewhere counts ends by SIGKILL of what was no part of a command any
	// more, and of commands that are told to have lacked memory.
	oomElsewhere atomic.Int64
	rooms        cgroup.Rooms
	half         int64    // of the memory that there is for the slot
	groupFD      *os.File // version 2 cgroup that commands are cloned into
	childLimits  bool     // each command needs limits of its own
	score        score
	watched      atomic.Int64 // processes that the memory watchdog has ended
	killing      sync.Mutex   // held while the whole slot is ended
	sweeps       atomic.Int32 // kills under way
	// strays counts, while kills are under way, who has ended: orphans, and the
	// leaders of commands that are being killed.
	strays atomic.Uint64
	rooted bool // all that a tenant has started hangs on a child of this process
}

// begin does what only a process can that is not yet protected.
func (a *agent) begin() { a.score.init() }

// onChange is closed when the next process has ended.
func (t *table) onChange() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// leaders maps the pids of all known commands to their tokens. A session or
// group keeps its number from being used again for as long as it has members.
func (t *table) leaders() map[int]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[int]uint64, len(t.byToken))
	for _, token := range t.old {
		if c := t.byToken[token]; c != nil {
			out[c.pid] = token
		}
	}
	return out
}
