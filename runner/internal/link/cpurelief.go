package link

import (
	"sync"
	"time"

	"hermes-exec/runner/internal/cgroup"
)

// slowKillAfter and slowStartAfter are how long a kill and the start of a command take
// before the slot gets more of the processors for it.
const (
	slowKillAfter  = 250 * time.Millisecond
	slowStartAfter = time.Second
)

// Relief takes the limit on processor time off a slot while work of ours in it
// is slow: what has been killed needs some of that time to end, and a command
// to come as far as its program. Where many processes have used up the slot's
// share and its memory, the kernel spends the share on reclaiming memory, which
// only the processes that cannot end would free.
type CPURelief struct {
	Joins []cgroup.Join // the slot's groups

	mu           sync.Mutex
	users        int
	restore      func() error
	restoreError error // the limit could not be put back
}

// Begin lifts the limit once what begins now takes long. end must be called.
func (r *CPURelief) Begin(long time.Duration) (end func()) {
	if len(r.Joins) == 0 {
		return func() {}
	}
	lifted := make(chan struct{})
	timer := time.AfterFunc(long, func() {
		defer close(lifted)
		r.lift()
	})
	return func() {
		if !timer.Stop() {
			<-lifted
			r.lower()
		}
	}
}

func (r *CPURelief) lift() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; r.users == 1 {
		r.restore = cgroup.LiftCPU(r.Joins)
	}
}

func (r *CPURelief) lower() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users == 0 {
		r.restoreError = r.restore()
	}
}

// Err says why a limit that was lifted could not be put back.
func (r *CPURelief) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restoreError
}
