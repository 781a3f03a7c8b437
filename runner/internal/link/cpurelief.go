package link

import (
	"sync"
	"time"

	"hermes-exec/runner/internal/cgroup"
)

// slowKillAfter and slowStartAfter are how long a kill and the start of a command take before the
// slot gets more processor time for them.
const (
	slowKillAfter  = 250 * time.Millisecond
	slowStartAfter = time.Second
)

// CPURelief lifts a slot's limit on processor time while the runner's work in it is slow: killed
// processes need processor time to end, and a command needs it to reach its program. If many
// processes have used up the slot's share and its memory, the kernel spends the share on reclaiming
// memory, which only the end of those processes would free.
type CPURelief struct {
	Joins []cgroup.Join // the slot's groups

	mu           sync.Mutex
	users        int
	restore      func() error
	restoreError error // the limit could not be restored
}

// Begin lifts the limit once the work takes long. end must be called after the work.
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

// Err returns why a lifted limit could not be restored.
func (r *CPURelief) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restoreError
}
