package files

import (
	"context"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/search"
	"hermes-exec/runner/internal/tree"
)

// removeTree removes the directory path with everything in it. An entry that cannot be removed does
// not stop the rest; the first error is returned.
func removeTree(ctx context.Context, path string) error {
	// Not filepath.Split: it would remove a `..` after a link.
	at := strings.LastIndexByte(path, '/') + 1
	dir, name := path[:at], path[at:]
	if name == "" || name == "." || name == ".." {
		return &fs.PathError{Op: "remove", Path: path, Err: syscall.EINVAL}
	}
	parent, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	var first error
	r := tree.Remover{
		Step: func() error { return ctx.Err() },
		Fail: func(path string, err error) {
			if first == nil {
				first = convert(dir+path, err)
			}
		},
	}
	r.Remove(int(parent.Fd()), name)
	if err := search.CheckCanceled(ctx); err != nil {
		return err
	}
	return first
}
