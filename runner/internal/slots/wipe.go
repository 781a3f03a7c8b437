package slots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// wipeBudget bounds what one wipe may take of a reset.
const wipeBudget = 10 * time.Second

// wipe removes a tree, however long that takes, and returns what could not be
// removed.
func wipe(path string) []string {
	w := &wiper{}
	w.wipe(path)
	return w.problems
}

const (
	deepest      = 200
	mostProblems = 20
	// stepsAtOnce is how many entries are removed between two looks at the time.
	stepsAtOnce = 256
)

// wiper removes trees. It never follows a link and never leaves a tree: every
// step is relative to an open directory. Directories that forbid it are opened
// up, and those that are too deep to hold open are moved up first.
type wiper struct {
	until    time.Time // zero: as long as it takes
	trash    *trash    // takes one of its turns for some steps at a time; nil: no need to
	steps    int
	late     bool
	problems []string

	top   int // where deep directories are moved to
	moved int
}

func newWiper(budget time.Duration) *wiper { return &wiper{until: time.Now().Add(budget)} }

// wipe says whether path is gone.
func (w *wiper) wipe(path string) bool {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		w.problem(path, err)
		return false
	}
	defer parent.Close()
	w.top = int(parent.Fd())
	if w.trash != nil {
		w.trash.turns <- struct{}{}
		defer func() { <-w.trash.turns }()
	}
	next := w.moved + 1
	gone := w.remove(w.top, filepath.Base(path), path, 0)
	for ; next <= w.moved; next++ {
		name := w.movedName(next)
		gone = w.remove(w.top, name, filepath.Join(filepath.Dir(path), name), 0) && gone
	}
	return gone
}

// movedName of the nth directory that was too deep.
func (w *wiper) movedName(n int) string { return fmt.Sprintf(".wipe-%d-%p-%d", os.Getpid(), w, n) }

// step is false when the time is over.
func (w *wiper) step(path string) bool {
	if w.trash != nil {
		w.trash.steps.Add(1)
	}
	if w.steps++; w.late || w.steps%stepsAtOnce != 0 {
		return !w.late
	}
	if !w.until.IsZero() && time.Now().After(w.until) {
		w.late = true
		w.problem(path, fmt.Errorf("not removed within %v", wipeBudget))
		return false
	}
	if w.trash != nil {
		<-w.trash.turns
		w.trash.turns <- struct{}{}
	}
	return true
}

func (w *wiper) problem(path string, err error) {
	if len(w.problems) < mostProblems {
		w.problems = append(w.problems, fmt.Sprintf("%s: %v", path, err))
	}
}

// remove takes away the entry name of the directory dir and says whether it is
// gone from there.
func (w *wiper) remove(dir int, name, path string, depth int) bool {
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
	if depth >= deepest {
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
func (w *wiper) empty(fd int, path string, depth int) {
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	eachName(f, func(name string) bool { return w.remove(int(f.Fd()), name, path+"/"+name, depth+1) })
}

// eachName reads a directory a part at a time, since it may be huge, and again
// as long as do says that it took an entry away: others can be skipped then.
func eachName(dir *os.File, do func(name string) (removed bool)) {
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
