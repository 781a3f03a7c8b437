package slots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// wipe removes a tree and returns what could not be removed. It never follows
// a link and never leaves the tree: every step is relative to an open
// directory. Directories that forbid it are opened up, and those that are too
// deep to hold open are moved up first.
func wipe(path string) []string {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return []string{err.Error()}
	}
	defer parent.Close()
	w := &wiper{top: int(parent.Fd())}
	w.remove(int(parent.Fd()), filepath.Base(path), path, 0)
	for len(w.deferred) > 0 {
		name := w.deferred[0]
		w.deferred = w.deferred[1:]
		w.remove(w.top, name, filepath.Join(filepath.Dir(path), name), 0)
	}
	return w.problems
}

const (
	deepest      = 200
	mostProblems = 20
)

type wiper struct {
	top      int // where deep directories are moved to
	moved    int
	deferred []string
	problems []string
}

func (w *wiper) problem(path string, err error) {
	if len(w.problems) < mostProblems {
		w.problems = append(w.problems, fmt.Sprintf("%s: %v", path, err))
	}
}

// remove takes away the entry name of the directory dir.
func (w *wiper) remove(dir int, name, path string, depth int) {
	err := unlink(dir, name, false)
	if err == nil || err == syscall.ENOENT {
		return
	}
	if !isDirAt(dir, name) {
		w.problem(path, err)
		return
	}
	if unlink(dir, name, true) == nil {
		return
	}
	if depth >= deepest {
		w.moved++
		to := fmt.Sprintf(".wipe-%d-%d", os.Getpid(), w.moved)
		if err := rename(dir, name, w.top, to); err == nil {
			w.deferred = append(w.deferred, to)
			return
		}
	}
	fd, err := openDir(dir, name)
	if err != nil {
		w.problem(path, err)
		return
	}
	w.empty(fd, path, depth)
	if err := unlink(dir, name, true); err != nil && err != syscall.ENOENT {
		w.problem(path, err)
	}
}

// empty removes everything in the open directory fd and closes it.
func (w *wiper) empty(fd int, path string, depth int) {
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			w.remove(int(f.Fd()), name, path+"/"+name, depth+1)
		}
		if len(names) == 0 || err != nil {
			break
		}
	}
	// Entries can be skipped while others are removed: look once more.
	if _, err := f.Seek(0, 0); err != nil {
		return
	}
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		w.remove(int(f.Fd()), name, path+"/"+name, depth+1)
	}
}
