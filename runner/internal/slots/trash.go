package slots

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// wipersAtOnce remove what is in the trash, in turns of some entries each:
	// a huge tree of one slot does not hold up that of another.
	wipersAtOnce = 2
	// wipeGrace is how long a reset waits for its own wipe. What takes longer
	// goes on beside the next tenant, out of its reach.
	wipeGrace = 4 * time.Millisecond
)

// trash is a directory of the runner's own, where trees lie that no tenant can
// reach any more until they are removed.
type trash struct {
	dir   string
	turns chan struct{}

	mu   sync.Mutex
	next int
}

func newTrash(dir string) (*trash, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	return &trash{dir: dir, turns: make(chan struct{}, wipersAtOnce)}, nil
}

// discarded is a tree on its way out.
type discarded struct {
	done     chan struct{}
	problems []string // once done
}

// take moves path into the trash and begins to remove it there.
func (t *trash) take(path string) (*discarded, error) {
	t.mu.Lock()
	t.next++
	to := filepath.Join(t.dir, fmt.Sprint(t.next))
	t.mu.Unlock()
	if err := os.Rename(path, to); err != nil {
		return nil, err
	}
	d := &discarded{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		w := wiper{turns: t.turns}
		w.wipe(to)
		d.problems = w.problems
	}()
	return d, nil
}

// wait is false when d is not removed within a time. Nothing is always removed.
func (d *discarded) wait(within time.Duration) bool {
	if d == nil {
		return true
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-d.done:
		return true
	case <-timer.C:
		return false
	}
}

// left says what of d is still there after the time that a reset has.
func (d *discarded) left() []string {
	switch {
	case !d.wait(wipeBudget):
		return []string{fmt.Sprintf("what a tenant left is not removed within %v", wipeBudget)}
	case d == nil:
		return nil
	}
	return d.problems
}
