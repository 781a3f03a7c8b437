package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/search"
)

// removeTree removes the folder path with everything in it. Each step goes
// through a descriptor of the folder that holds the entry: one that is swapped
// for a link is not followed. What cannot be removed does not keep the rest;
// the first error is returned.
func removeTree(ctx context.Context, path string) error {
	// Not filepath.Split's relatives: they would remove a `..` behind a link.
	at := strings.LastIndexByte(path, '/') + 1
	dir, name := path[:at], path[at:]
	if name == "" || name == "." || name == ".." {
		return &fs.PathError{Op: "remove", Path: path, Err: syscall.EINVAL}
	}
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	r := remover{ctx: ctx}
	r.entry(parent, name, path)
	if err := search.Canceled(ctx); err != nil {
		return err
	}
	return r.failed
}

type remover struct {
	ctx    context.Context
	failed error
}

func (r *remover) fail(path string, err error) {
	if r.failed == nil {
		r.failed = convert(path, err)
	}
}

// entry says whether it is gone.
func (r *remover) entry(dir *os.Root, name, path string) bool {
	err := dir.Remove(name)
	if isErrno(err, syscall.ENOTEMPTY, syscall.EEXIST) {
		if err = r.folder(dir, name, path); err == nil {
			err = dir.Remove(name)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.fail(path, err)
		return false
	}
	return true
}

func (r *remover) folder(dir *os.Root, name, path string) error {
	seen, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	folder, err := openSeen(dir, name, seen)
	var replaced refusal
	if errors.As(err, &replaced) {
		return syscall.EBUSY
	}
	if err != nil {
		return err
	}
	defer folder.Close()
	r.contents(folder, path)
	return nil
}

// contents reads names again and again, since entries can be skipped while
// others are removed, until none is left or none can be removed.
func (r *remover) contents(dir *os.Root, path string) {
	for progress := true; progress; {
		progress = false
		list, err := dir.Open(".")
		if err != nil {
			r.fail(path, err)
			return
		}
		names, _ := list.Readdirnames(1024)
		list.Close()
		for _, name := range names {
			if r.ctx.Err() != nil {
				return
			}
			if r.entry(dir, name, path+"/"+name) {
				progress = true
			}
		}
	}
}
