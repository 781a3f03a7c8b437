package agent

import (
	"math"
	"os"

	"hermes-exec/runner/internal/memory"
)

// platform is what only Linux gives an agent.
type platform struct {
	killer
	exhaustion
	score       memory.Score
	groupFD     *os.File // version 2 cgroup that commands are cloned into
	childLimits bool     // each command needs limits of its own
}

// begin does what the process cannot do any more once it is undumpable.
func (a *agent) begin() {
	a.score.Init()
	a.killer.tenancy = &a.tenancy
	a.exhaustion.tenancy, a.exhaustion.killer = &a.tenancy, &a.killer
}

// onChange is closed when the next process has ended.
func (t *table) onChange() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// leaders maps the pids of all known commands to their tokens, and says when the
// oldest fork began that is not entered yet, in clock ticks. A session or group
// keeps its number from being used again for as long as it has members.
func (t *table) leaders() (leaders map[int]uint64, forking uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	leaders, forking = make(map[int]uint64, len(t.byToken)), math.MaxUint64
	for _, token := range t.old {
		if c := t.byToken[token]; c != nil {
			leaders[c.pid] = token
		}
	}
	for _, began := range t.inflight {
		forking = min(forking, began)
	}
	return leaders, forking
}
