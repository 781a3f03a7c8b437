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
	// MaxRemovals is how many threads remove trees at the same time. They take turns of some
	// entries each, so that a huge tree of one slot does not hold up the tree of another.
	MaxRemovals = 2
	// ResetGrace is how long a reset waits for its own wipe. A longer wipe continues while the next
	// tenant runs, out of its reach.
	ResetGrace = 4 * time.Millisecond
)

// Trash is a directory of the runner where trees wait for their removal. No tenant can reach them.
type Trash struct {
	Dir     string
	Turns   chan struct{} // one for each removal in progress
	Timeout time.Duration // for trees of earlier resets
	steps   atomic.Int64  // entries that were visited, of all trees

	mu   sync.Mutex
	next int
}

// NewTrash makes a Trash in dir.
func NewTrash(dir string) (*Trash, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("trash: %w", err)
	}
	return &Trash{Dir: dir, Turns: make(chan struct{}, MaxRemovals), Timeout: Timeout}, nil
}

// DiscardedTree is a tree that is being removed.
type DiscardedTree struct {
	done     chan struct{}
	problems []string // valid after done
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

// Wait returns false if the tree is not removed within a time.
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

// SettleOnce is Settle, but waits for each tree at most once. A process that has directories of a
// tree open, and makes entries in them faster than they are removed, can hold up only one reset.
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

// Settle waits a while for trees. It returns the trees that are still being removed, which does no
// harm, and the problems.
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
		problems = append(problems, fmt.Sprintf("no file that a tenant left was removed within %v", t.Timeout))
	}
	return going, problems
}
