package agent

import (
	"syscall"
	"time"

	"hermes-exec/runner/internal/proc"
)

const watchEvery = 200 * time.Millisecond

// watch holds a memory limit where no cgroup can: it ends the largest process
// of the slot whenever all of them together have more than limit bytes of
// memory of their own. What grows faster than it looks gets further first.
func (a *agent) watch(limit int64) {
	for range time.Tick(watchEvery) {
		a.killers.do(func() { a.watchOnce(limit) })
	}
}

func (a *agent) watchOnce(limit int64) {
	all, err := a.snapshot()
	if err != nil {
		return
	}
	var total, most int64
	var largest proc.Process
	for _, p := range a.tenants(all) {
		own := proc.OwnMemory(p.PID)
		total += own
		if own > most {
			most, largest = own, p
		}
	}
	if total > limit && largest.PID != 0 {
		a.watched.Add(1)
		signalProc(largest, syscall.SIGKILL)
	}
}
