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
	path = absolute(workdir, path)
	return path, reach.CheckParent(path)
}

func absolute(workdir, path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return strings.TrimSuffix(workdir, "/") + "/" + path
}

// walkEntry is one entry of a walk. relative is its path below the root.
type walkEntry struct {
	full, relative, name string
	isDir                bool
	kind                 fs.FileMode
}

// walker walks through a tree in the order of its paths, never through a symbolic link. It runs on
// the caller's thread.
type walker struct {
	ctx         context.Context
	hidden      bool
	ignoreFiles bool
	maxDepth    int                              // below the start; 0: no limit
	wanted      func(relative, name string) bool // nil: every entry
	visit       func(f walkEntry)                // of each entry that is wanted
	display     string                           // the root as the caller passed it
	skipped     skips
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

// run visits everything below start, a directory below root, which must be a directory. Ignore files
// apply to start, too; that it is hidden does not matter, because the caller named it.
func (w *walker) run(root, start string) {
	if w.deadline.IsZero() {
		w.deadline = time.Now().Add(maxDuration)
	}
	var rules *ignoreSet
	if w.ignoreFiles {
		rules = w.parentIgnores(filepath.Clean(root))
	}
	full, relative := strings.TrimSuffix(root, "/"), ""
	for _, name := range strings.FieldsFunc(start, func(r rune) bool { return r == '/' }) {
		if w.ignoreFiles {
			rules = w.loadIgnores(rules, full)
		}
		full, relative = full+"/"+name, join(relative, name)
		if w.ignores(full, name, true, rules) {
			w.skipped.add(reasonIgnored, displayPath(w.display, relative))
			return
		}
	}
	w.directory(full, relative, rules, 1, deviceOf(full+"/"))
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
	entries, err := w.read(path, depth == 1)
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
			isDir: e.kind.IsDir(), kind: e.kind}
		deeper := child.isDir && (w.maxDepth == 0 || depth < w.maxDepth)
		wanted := w.wanted == nil || w.wanted(child.relative, child.name)
		if reason := w.leavesOut(&child, rules); reason != "" {
			// Nobody looks for files in .git, unless the pattern has hidden names.
			if (wanted || deeper) && (w.hidden || child.name != ".git") {
				w.skipped.add(reason, displayPath(w.display, child.relative))
			}
			continue
		}
		if wanted {
			w.visit(child)
		}
		if deeper {
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

// leavesOut returns the reason for which the walk leaves out an entry, "" if it does not.
func (w *walker) leavesOut(f *walkEntry, rules *ignoreSet) string {
	switch {
	case !w.hidden && strings.HasPrefix(f.name, "."):
		return reasonHidden
	case w.ignores(f.full, f.name, f.isDir, rules):
		return reasonIgnored
	}
	return ""
}

func (w *walker) ignores(full, name string, isDir bool, rules *ignoreSet) bool {
	return w.ignoreFiles && (name == ".git" || rules.matches(full, name, isDir))
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
