package search

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/reach"
)

const (
	// maxNameBytes bounds the names held at once while directories are read.
	maxNameBytes = 32 << 20
	entrySize    = 40 // of a name besides its bytes
	maxErrors    = 100
	// maxDuration bounds a search that would go through a whole machine.
	maxDuration = 120 * time.Second
)

// Resolve makes a path absolute and does not clean it: the kernel interprets `..` after a symbolic
// link. It refuses files of the runner.
func Resolve(workdir, path string) (string, error) {
	if path == "" {
		return "", badRequest("the path is empty")
	}
	if strings.IndexByte(path, 0) >= 0 {
		return "", badRequest("the path holds a NUL byte")
	}
	if !strings.HasPrefix(path, "/") {
		path = strings.TrimSuffix(workdir, "/") + "/" + path
	}
	return path, reach.CheckParent(path)
}

// walkEntry is one entry of a walk. relative is its path below the root.
type walkEntry struct {
	full, relative, name string
	isDir                bool
}

// walker walks through a tree in the order of its paths, never through a symbolic link. It runs on
// the caller's thread.
type walker struct {
	ctx         context.Context
	hidden      bool
	ignoreFiles bool
	maxDepth    int                    // 0: no limit
	visit       func(f walkEntry) bool // false ends the walk
	errors      []string
	nameBytes   int // bytes of names
	stopped     bool
	ignoresCut  bool // some rules of ignore files are not applied
	deadline    time.Time
}

func (w *walker) fail(path string, err error) {
	if len(w.errors) < maxErrors {
		w.errors = append(w.errors, path+": "+reason(err))
	}
}

// run visits everything below root, which must be a directory.
func (w *walker) run(root string) {
	if w.deadline.IsZero() {
		w.deadline = time.Now().Add(maxDuration)
	}
	var rules *ignoreSet
	if w.ignoreFiles {
		rules = w.parentIgnores(filepath.Clean(root))
	}
	w.directory(strings.TrimSuffix(root, "/"), "", rules, 1, deviceOf(root))
}

func deviceOf(path string) uint64 {
	if info, err := os.Stat(path); err == nil {
		return uint64(info.Sys().(*syscall.Stat_t).Dev)
	}
	return 0
}

func (w *walker) directory(full, relative string, rules *ignoreSet, depth int, device uint64) {
	path := full
	if path == "" {
		path = "/"
	}
	before := w.nameBytes
	entries, err := w.read(path, relative == "")
	if err != nil {
		w.fail(path, err)
		return
	}
	defer func() { w.nameBytes = before }()
	if w.ignoreFiles {
		rules = w.loadIgnores(rules, path)
	}
	for _, e := range entries {
		if w.stopped || w.ctx.Err() != nil || time.Now().After(w.deadline) {
			w.stopped = true
			return
		}
		child := walkEntry{full: full + "/" + e.name, relative: join(relative, e.name), name: e.name,
			isDir: e.kind.IsDir()}
		if !w.includes(&child, rules) {
			continue
		}
		if child.isDir || e.kind.IsRegular() {
			if !w.visit(child) {
				w.stopped = true
				return
			}
		}
		if child.isDir && (w.maxDepth == 0 || depth < w.maxDepth) {
			w.descend(child, rules, depth, device)
		}
	}
}

func (w *walker) descend(dir walkEntry, rules *ignoreSet, depth int, device uint64) {
	info, err := os.Lstat(dir.full)
	if err != nil {
		return // removed since its parent was read
	}
	here := uint64(info.Sys().(*syscall.Stat_t).Dev)
	if !info.IsDir() || (here != device && kernelFiles(dir.full)) {
		return
	}
	w.directory(dir.full, dir.relative, rules, depth+1, here)
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func (w *walker) includes(f *walkEntry, rules *ignoreSet) bool {
	if !w.hidden && strings.HasPrefix(f.name, ".") {
		return false
	}
	if !w.ignoreFiles {
		return true
	}
	if f.name == ".git" {
		return false
	}
	return !rules.matches(f.full, f.name, f.isDir)
}

type dirEntry struct {
	name string
	kind fs.FileMode
}

// read returns the entries of a directory, sorted by name. The root may be a symbolic link.
func (w *walker) read(path string, isRoot bool) ([]dirEntry, error) {
	flags := syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NONBLOCK
	if !isRoot {
		flags |= syscall.O_NOFOLLOW
	}
	dir, err := reach.Open(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var entries []dirEntry
	for {
		some, err := dir.ReadDir(1024)
		for _, e := range some {
			entries = append(entries, dirEntry{e.Name(), e.Type()})
			w.nameBytes += len(e.Name()) + entrySize
		}
		if w.nameBytes > maxNameBytes {
			w.fail(path, syscall.ENOMEM)
			break
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			if len(entries) == 0 {
				return nil, err
			}
			w.fail(path, err)
			break
		}
	}
	slices.SortFunc(entries, func(a, b dirEntry) int { return strings.Compare(a.name, b.name) })
	return entries, nil
}

// displayPath returns a path for the result: below the path that the caller passed.
func displayPath(asked, relative string) ipc.Bytes {
	asked = strings.TrimRight(asked, "/")
	switch {
	case relative == "":
		return ipc.Bytes(asked)
	case asked == ".":
		return ipc.Bytes(relative)
	}
	return ipc.Bytes(asked + "/" + relative)
}
