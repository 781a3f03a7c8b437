package tenants

import (
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/memory"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/threads"
)

// threadCount is how many threads scan and signal processes.
const threadCount = 2

// Tenants are the processes of the slot that is set up.
type Tenants struct {
	setup   isolation.Setup
	user    accounts.User
	table   *children.Table
	threads *threads.Pool // with the slot's user rights, to scan and signal processes
	rooted  bool          // all processes of the tenant descend from a child of this process
	killing sync.Mutex    // held while the whole slot is ended
}

// New returns the Tenants of a slot; the processes in table are its commands. rooted means that all
// of its processes descend from a child of this process.
func New(setup isolation.Setup, user accounts.User, table *children.Table, rooted bool) *Tenants {
	return &Tenants{setup: setup, user: user, table: table, rooted: rooted}
}

// StartThreads starts the threads that scan and signal processes.
func (t *Tenants) StartThreads(prepare func() error) (err error) {
	t.threads, err = threads.NewPool(threadCount, prepare)
	return err
}

// MeasureOpenFiles returns the disk space of removed files that the slot's processes have open.
func (t *Tenants) MeasureOpenFiles() (use diskspace.Usage) {
	t.threads.Do(func() {
		if all, err := t.snapshot(); err == nil {
			use = diskspace.MeasureOpenFiles(slices.Collect(maps.Keys(t.selectSlot(all))))
		}
	})
	return use
}

// CountNumbers counts the process numbers in use in the slot's own namespace. Zombies count too.
func (t *Tenants) CountNumbers() (used int64) {
	t.threads.Do(func() {
		buf := make([]byte, 8192)
		names, _ := proc.Numbers()
		for _, name := range names {
			p, _ := proc.ParseStat(proc.Read("/proc/"+name+"/stat", buf))
			used += max(1, p.Threads)
		}
	})
	return used
}

// CountTasks counts the threads of the slot's processes, and the threads of other slots' processes
// if they are visible.
func (t *Tenants) CountTasks() (own, others int64) {
	t.threads.Do(func() {
		all, err := t.snapshot()
		if err != nil {
			return
		}
		for _, p := range t.selectSlot(all) {
			own += p.Threads
		}
		for _, p := range all {
			if p.Start >= t.setup.Since && p.PID != t.setup.ServePID && p.Parent != t.setup.ServePID {
				others += p.Threads
			}
		}
	})
	return own, others - own
}

const watchInterval = 200 * time.Millisecond

// WatchMemory enforces a memory limit without a cgroup: it ends the largest process of the slot
// whenever all of them together have more than limit bytes of memory of their own. A process that
// grows fast may exceed the limit between two checks. It never returns.
func (t *Tenants) WatchMemory(limit int64) {
	for range time.Tick(watchInterval) {
		t.threads.Do(func() {
			all, err := t.snapshot()
			if err != nil {
				return
			}
			if largest, over := memory.LargestOverLimit(limit, t.selectSlot(all)); over {
				t.table.OOM.CountWatchdogKill()
				signalProc(largest, syscall.SIGKILL)
			}
		})
	}
}
