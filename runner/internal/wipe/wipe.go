// Package wipe removes the trees that tenants leave.
package wipe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Budget bounds what one wipe may take of a reset.
const Budget = 10 * time.Second

// Tree removes a tree, however long that takes, and returns what could not be
// removed.
func Tree(path string) []string {
	w := &Wiper{}
	w.Wipe(path)
	return w.Problems
}

const (
	// Deepest is how many directories are held open.
	Deepest      = 200
	mostProblems = 20
	// stepsAtOnce is how many entries are removed between two looks at the time.
	stepsAtOnce = 256
)

// Wiper removes trees. It never follows a link and never leaves a tree: every
// step is relative to an open directory. Directories that forbid it are opened
// up, and those that are too deep to hold open are moved up first.
type Wiper struct {
	until    time.Time // zero: as long as it takes
	trash    *Trash    // takes one of its turns for some steps at a time; nil: no need to
	steps    int
	late     bool
	Problems []string // what could not be removed

	top   int // where deep directories are moved to
	moved int
}

// New makes a Wiper that takes no longer than budget.
func New(budget time.Duration) *Wiper { return &Wiper{until: time.Now().Add(budget)} }

// Wipe says whether path is gone.
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

// WipeIn is Wipe for an entry of an open directory, whose path may lead
// elsewhere meanwhile.
func (w *Wiper) WipeIn(parent *os.File, name string) bool {
	path := filepath.Join(parent.Name(), name)
	w.top = int(parent.Fd())
	if w.trash != nil {
		w.trash.Turns <- struct{}{}
		defer func() { <-w.trash.Turns }()
	}
	next := w.moved + 1
	gone := w.remove(w.top, name, path, 0)
	for ; next <= w.moved; next++ {
		name := w.movedName(next)
		gone = w.remove(w.top, name, filepath.Join(parent.Name(), name), 0) && gone
	}
	return gone
}

// movedName of the nth directory that was too deep.
func (w *Wiper) movedName(n int) string { return fmt.Sprintf(".wipe-%d-%p-%d", os.Getpid(), w, n) }

// step is false when the time is over.
func (w *Wiper) step(path string) bool {
	if w.trash != nil {
		w.trash.steps.Add(1)
	}
	if w.steps++; w.late || w.steps%stepsAtOnce != 0 {
		return !w.late
	}
	if !w.until.IsZero() && time.Now().After(w.until) {
		w.late = true
		w.problem(path, fmt.Errorf("not removed within %v", Budget))
		return false
	}
	if w.trash != nil {
		<-w.trash.Turns
		w.trash.Turns <- struct{}{}
	}
	return true
}

func (w *Wiper) problem(path string, err error) {
	if len(w.Problems) < mostProblems {
		w.Problems = append(w.Problems, fmt.Sprintf("%s: %v", path, err))
	}
}

// remove takes away the entry name of the directory dir and says whether it is
// gone from there.
func (w *Wiper) remove(dir int, name, path string, depth int) bool {
	if !w.step(path) {
		return false
	}
	err := unlink(dir, name, false)
	if err == nil || err == syscall.ENOENT {
		return true
	}
	if !isDirAt(dir, name) {
		w.problem(path, err)
		return false
	}
	if unlink(dir, name, true) == nil {
		return true
	}
	if depth >= Deepest {
		if err := rename(dir, name, w.top, w.movedName(w.moved+1)); err == nil {
			w.moved++
			return true
		}
	}
	fd, err := openDir(dir, name)
	if err != nil {
		w.problem(path, err)
		return false
	}
	w.empty(fd, path, depth)
	if w.late {
		return false
	}
	if err := unlink(dir, name, true); err != nil && err != syscall.ENOENT {
		w.problem(path, err)
		return false
	}
	return true
}

// empty removes everything in the open directory fd and closes it.
func (w *Wiper) empty(fd int, path string, depth int) {
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	EachName(f, func(name string) bool { return w.remove(int(f.Fd()), name, path+"/"+name, depth+1) })
}

// EachName reads a directory a part at a time, since it may be huge, and again
// as long as do says that it took an entry away: others can be skipped then.
func EachName(dir *os.File, do func(name string) (removed bool)) {
	for again := true; again; {
		again = false
		for {
			names, err := dir.Readdirnames(1024)
			for _, name := range names {
				if do(name) {
					again = true
				}
			}
			if len(names) == 0 || err != nil {
				break
			}
		}
		if _, err := dir.Seek(0, 0); err != nil {
			return
		}
	}
}
