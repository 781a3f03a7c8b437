package slots

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
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
	dir      string
	turns    chan struct{}
	patience time.Duration // with trees of earlier resets
	steps    atomic.Int64  // entries that were looked at, of all trees

	mu   sync.Mutex
	next int
}

func newTrash(dir string) (*trash, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("slots: %w", err)
	}
	return &trash{dir: dir, turns: make(chan struct{}, wipersAtOnce), patience: wipeBudget}, nil
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
		w := wiper{trash: t}
		w.wipe(to)
		d.problems = w.problems
	}()
	return d, nil
}

// wait is false when d is not removed within a time.
func (d *discarded) wait(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-d.done:
		return true
	case <-timer.C:
		return false
	}
}

// settle waits a while for trees. It returns those that are still going away,
// which harms nobody, and what cannot be removed.
func (t *trash) settle(trees []*discarded) (going []*discarded, problems []string) {
	until, before := time.Now().Add(t.patience), t.steps.Load()
	for _, d := range trees {
		if d.wait(time.Until(until)) {
			problems = append(problems, d.problems...)
		} else {
			going = append(going, d)
		}
	}
	if len(going) > 0 && t.steps.Load() == before {
		problems = append(problems, fmt.Sprintf("nothing of what a tenant left was removed within %v", t.patience))
	}
	return going, problems
}
