package initproc

import (
	"sync"
	"sync/atomic"
)

// watchesChildren is set once ReapOrphans runs and also watches owned children.
var watchesChildren atomic.Bool

// children holds the processes that this program waits for. The reaper of orphans does not reap
// them. It takes mu for writing, so that it never runs between a fork and the entry here.
var children = struct {
	mu    sync.RWMutex
	entry sync.Mutex
	pids  map[int]chan struct{} // closed when the process has ended
}{pids: map[int]chan struct{}{}}

// Own runs start, which forks, and keeps the reaper away from the child until Disown is called with
// its pid, after the caller has waited for it.
func Own(start func() (pid int, err error)) (int, error) {
	children.mu.RLock()
	defer children.mu.RUnlock()
	pid, err := start()
	if err == nil {
		children.entry.Lock()
		children.pids[pid] = make(chan struct{})
		children.entry.Unlock()
	}
	return pid, err
}

// Disown forgets a child that has been waited for.
func Disown(pid int) {
	children.entry.Lock()
	delete(children.pids, pid)
	children.entry.Unlock()
}

// OnEnd returns a channel that is closed when an owned child has ended, so that its owner needs no
// blocked thread to wait for it. It needs ReapOrphans.
func OnEnd(pid int) <-chan struct{} {
	children.entry.Lock()
	defer children.entry.Unlock()
	if ended, ok := children.pids[pid]; ok && watchesChildren.Load() {
		return ended
	}
	// Without a reaper, the caller's own wait has to do.
	now := make(chan struct{})
	close(now)
	return now
}
