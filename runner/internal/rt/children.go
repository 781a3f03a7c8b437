package rt

import (
	"fmt"
	"os/exec"
	"sync"
)

// children holds the processes that somebody in this program waits for. The
// reaper of orphans leaves those alone; it takes mu for writing, so that it
// never looks between a fork and the entry here.
var children = struct {
	mu    sync.RWMutex
	entry sync.Mutex
	pids  map[int]struct{}
}{pids: map[int]struct{}{}}

// Own runs start, which forks, and keeps the reaper away from the child until
// Disown is called with its pid (after the caller has waited for it).
func Own(start func() (pid int, err error)) (int, error) {
	children.mu.RLock()
	defer children.mu.RUnlock()
	pid, err := start()
	if err == nil {
		children.entry.Lock()
		children.pids[pid] = struct{}{}
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

// Start is cmd.Start for a program in which ReapOrphans runs; pair it with Wait.
func Start(cmd *exec.Cmd) error {
	_, err := Own(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, fmt.Errorf("start %s: %w", cmd.Path, err)
		}
		return cmd.Process.Pid, nil
	})
	return err
}

// Wait is cmd.Wait for a command begun with Start.
func Wait(cmd *exec.Cmd) error {
	defer Disown(cmd.Process.Pid)
	return cmd.Wait()
}

func owned(pid int) bool {
	children.entry.Lock()
	defer children.entry.Unlock()
	_, ok := children.pids[pid]
	return ok
}
