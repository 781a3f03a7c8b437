package wipe

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxRemovals is how many threads remove trees at the same time, in turns of
	// some entries each: a huge tree of one slot does not hold up that of
	// another.
	MaxRemovals = 2
	// Grace is how long a reset waits for its own wipe. What takes longer
	// goes on beside the next tenant, out of its reach.
	ResetGrace = 4 * time.Millisecond
)

// Trash is a directory of the runner's own, where trees lie that no tenant can
// reach any more until they are removed.
type Trash struct {
	Dir     string
	Turns   chan struct{} // one for each that removes something just now
	Timeout time.Duration // with trees of earlier resets
	steps   atomic.Int64  // entries that were looked at, of all trees

	mu   sync.Mutex
	next int
}

// NewTrash keeps it in dir.
func NewTrash(dir string) (*Trash, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("trash: %w", err)
	}
	return &Trash{Dir: dir, Turns: make(chan struct{}, MaxRemovals), Timeout: Timeout}, nil
}

// Discarded is a tree on its way out.
type DiscardedTree struct {
	done     chan struct{}
	problems []string // once done
	slow     bool     // a reset has waited for it in vain
}

// Discard moves path into the trash and begins to remove it there.
func (t *Trash) Discard(path string) (*DiscardedTree, error) {
	t.mu.Lock()
	t.next++
	to := filepath.Join(t.Dir, fmt.Sprint(t.next))
	t.mu.Unlock()
	if err := os.Rename(path, to); err != nil {
		return nil, err
	}
	d := &DiscardedTree{done: make(chan struct{})}
	go func() {
		defer close(d.done)
		w := Wiper{trash: t}
		w.Wipe(to)
		d.problems = w.Problems
	}()
	return d, nil
}

// Wait is false when d is not removed within a time.
func (d *DiscardedTree) Wait(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-d.done:
		return true
	case <-timer.C:
		return false
	}
}

// SettleOnce is Settle that waits a while for each tree no more than once: who
// has directories of it open, and makes others in them faster than they are
// removed, holds up one reset.
func (t *Trash) SettleOnce(trees []*DiscardedTree) (going []*DiscardedTree, problems []string) {
	var others []*DiscardedTree
	for _, d := range trees {
		if d.slow && !d.Wait(0) {
			going = append(going, d)
		} else {
			others = append(others, d)
		}
	}
	others, problems = t.Settle(others)
	for _, d := range others {
		d.slow = true
	}
	return append(going, others...), problems
}

// Settle waits a while for trees. It returns those that are still being
// removed, which does no harm, and what cannot be removed.
func (t *Trash) Settle(trees []*DiscardedTree) (going []*DiscardedTree, problems []string) {
	until, before := time.Now().Add(t.Timeout), t.steps.Load()
	for _, d := range trees {
		if d.Wait(time.Until(until)) {
			problems = append(problems, d.problems...)
		} else {
			going = append(going, d)
		}
	}
	if len(going) > 0 && t.steps.Load() == before {
		problems = append(problems, fmt.Sprintf("nothing of what a tenant left was removed within %v", t.Timeout))
	}
	return going, problems
}
