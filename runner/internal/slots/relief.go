package slots

import (
	"sync"
	"time"

	"hermes-exec/runner/internal/cgroup"
)

// slowKill and slowStart are how long a kill and the start of a command take
// before the slot gets more of the processors for it.
const (
	slowKill  = 250 * time.Millisecond
	slowStart = time.Second
)

// relief takes the limit on processor time off a slot while work of ours in it
// is slow: what has been killed needs some of that time to end, and a command
// to come as far as its program. Where many processes have used up the slot's
// share and its memory, the kernel spends the share on reclaiming memory, which
// only the processes that cannot end would free.
type relief struct {
	mu      sync.Mutex
	users   int
	restore func() error
	failed  error // the limit could not be put back
}

// during runs do, which waits for processes of these groups, and lifts their
// limit once that takes long.
func (r *relief) during(joins []cgroup.Join, long time.Duration, do func()) {
	if len(joins) == 0 {
		do()
		return
	}
	lifted := make(chan struct{})
	timer := time.AfterFunc(long, func() {
		defer close(lifted)
		r.lift(joins)
	})
	do()
	if !timer.Stop() {
		<-lifted
		r.lower()
	}
}

// relieved is relief for work in the slot.
func (s *slot) relieved(long time.Duration, do func()) { s.relief.during(s.setup.Cgroups, long, do) }

func (r *relief) lift(joins []cgroup.Join) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; r.users == 1 {
		r.restore = cgroup.LiftCPU(joins)
	}
}

func (r *relief) lower() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users == 0 {
		r.failed = r.restore()
	}
}

// lost says why a limit that was lifted could not be put back.
func (r *relief) lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}
