package wipe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/tree"
)

// Timeout bounds one wipe of a reset.
const Timeout = 10 * time.Second

// RemoveTree removes a tree, however long that takes, and returns the problems.
func RemoveTree(path string) []string {
	w := &Wiper{}
	w.Wipe(path)
	return w.Problems
}

const (
	maxProblems = 20
	// stepBatch is how many entries are removed between two checks of the time.
	stepBatch = 256
	// yieldBatch is how many entries are removed before calls of other slots come first.
	yieldBatch = 8
)

// Wiper removes trees with the runner's rights. It grants itself missing rights on directories, and
// takes the rights of others.
type Wiper struct {
	until    time.Time // zero: no limit
	trash    *Trash    // whose turns it takes; nil: none
	yielder  pipe.Yielder
	steps    int
	Problems []string // entries that could not be removed
}

// New makes a Wiper with a time limit of budget.
func New(budget time.Duration) *Wiper { return &Wiper{until: time.Now().Add(budget)} }

// Wipe removes path and reports whether it is gone.
func (w *Wiper) Wipe(path string) bool {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		w.problem(path, err)
		return false
	}
	defer parent.Close()
	return w.WipeIn(parent, filepath.Base(path))
}

// WipeIn is Wipe for an entry of an open directory, whose path may lead elsewhere meanwhile.
func (w *Wiper) WipeIn(parent *os.File, name string) bool {
	if w.trash != nil {
		w.trash.Turns <- struct{}{}
		defer func() {
			w.yielder.Close()
			<-w.trash.Turns
		}()
	}
	remover := tree.Remover{Force: true, Shut: true, Step: w.step, Fail: func(below string, err error) {
		w.problem(filepath.Join(parent.Name(), below), err)
	}}
	return remover.Remove(int(parent.Fd()), name)
}

// step fails after the time limit.
func (w *Wiper) step() error {
	w.steps++
	if w.trash != nil {
		w.trash.steps.Add(1)
		if w.steps%yieldBatch == 0 {
			w.yielder.Yield()
		}
	}
	if w.steps%stepBatch != 0 {
		return nil
	}
	if !w.until.IsZero() && time.Now().After(w.until) {
		return fmt.Errorf("not removed within %v", Timeout)
	}
	if w.trash != nil {
		<-w.trash.Turns
		w.trash.Turns <- struct{}{}
	}
	return nil
}

func (w *Wiper) problem(path string, err error) {
	if len(w.Problems) < maxProblems {
		w.Problems = append(w.Problems, fmt.Sprintf("%s: %v", path, err))
	}
}
