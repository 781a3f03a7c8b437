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

// lookers is how many threads look at processes and signal them.
const threadCount = 2

// Tenants are the processes of the slot that is set up.
type Tenants struct {
	setup   isolation.Setup
	user    accounts.User
	table   *children.Table
	threads *threads.Pool // with the slot's user rights, to look at processes and signal them
	rooted  bool          // all processes of the tenant descend from a child of this one
	killing sync.Mutex    // held while the whole slot is ended
}

// New knows the slot's processes, of which those in table are commands. rooted says
// that all descend from a child of this process.
func New(setup isolation.Setup, user accounts.User, table *children.Table, rooted bool) *Tenants {
	return &Tenants{setup: setup, user: user, table: table, rooted: rooted}
}

// StartThreads starts the threads that look at processes and signal them.
func (t *Tenants) StartThreads(prepare func() error) (err error) {
	t.threads, err = threads.NewPool(threadCount, prepare)
	return err
}

// MeasureOpenFiles is what the removed files take that the slot's processes have open.
func (t *Tenants) MeasureOpenFiles() (use diskspace.Usage) {
	t.threads.Do(func() {
		if all, err := t.snapshot(); err == nil {
			use = diskspace.MeasureOpenFiles(slices.Collect(maps.Keys(t.selectSlot(all))))
		}
	})
	return use
}

// CountNumbers counts the process numbers that are taken in the slot's own
// namespace, which zombies hold too.
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

// CountTasks counts the threads of the slot's processes, and of those that other
// slots have started, where they are seen.
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

// WatchMemory holds a memory limit where no cgroup can: it ends the largest
// process of the slot whenever all of them together have more than limit bytes
// of memory of their own. A process that grows fast may exceed the limit
// between two looks. It never returns.
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
