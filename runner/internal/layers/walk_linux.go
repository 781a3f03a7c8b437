package layers

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"syscall"

	"hermes-exec/runner/internal/openat"
)

const (
	// nameSize is the memory of a held directory besides the bytes of its name.
	nameSize = 256
	// maxLinked bounds the files with several names that are held at once.
	maxLinked = 1 << 20
)

// maxNameBytes bounds the names of directories that are held at once.
var maxNameBytes = 64 << 20

// errTooMany is the error for a tree with so many directories in one, or files with several names,
// that they take too much memory.
const errTooMany = syscall.EFBIG

// visitor receives the entries of a walk. Errors of the system become fs.PathError with a path
// that begins below the layer.
type visitor interface {
	// enter is called with an open directory before its entries.
	enter(d *directory) error
	// entry is called for everything in an open directory that is no directory.
	entry(dir int, name string) error
	// leave is called with an open directory after everything below it.
	leave(d *directory) error
}

// walk visits a tree depth first, the entries of a directory that are no directories first.
type walk struct {
	ctx       context.Context
	op        string // for errors
	bound     Bound
	size      Size
	chain     chain
	pending   [][]string // for each directory of the chain, the names of directories to visit
	nameBytes int        // of the names in pending and in chain
	buffer    [32 << 10]byte
	skips     func(dir int, name string) (bool, error) // reports directories that are not visited; may be nil
}

// run visits everything below a directory.
func (w *walk) run(dir string, v visitor) error {
	defer w.chain.close()
	if err := w.chain.start(dir); err != nil {
		return &fs.PathError{Op: w.op, Path: dir, Err: err}
	}
	if err := w.enter(v); err != nil {
		return err
	}
	for {
		last := len(w.pending) - 1
		if names := w.pending[last]; len(names) > 0 {
			name := names[len(names)-1]
			names[len(names)-1], w.pending[last] = "", names[:len(names)-1]
			if skipped, err := w.push(name); err != nil {
				return w.explain(name, err)
			} else if skipped {
				w.nameBytes -= len(name) + nameSize
				continue
			}
			if err := w.enter(v); err != nil {
				return err
			}
			continue
		}
		if err := v.leave(w.chain.last()); err != nil {
			return w.explain("", err)
		}
		if last == 0 {
			return nil
		}
		done, err := w.chain.pop()
		_ = syscall.Close(done.fd)
		if err != nil {
			return w.explain(done.name, err)
		}
		w.pending = w.pending[:last]
		w.nameBytes -= len(done.name) + nameSize
	}
}

// push opens a directory in the last one, unless it is not to be visited.
func (w *walk) push(name string) (skipped bool, err error) {
	if w.skips != nil {
		if skipped, err = w.skips(w.chain.last().fd, name); skipped || err != nil {
			return skipped, err
		}
	}
	return false, w.chain.push(name)
}

// enter visits the entries of the last directory, and notes its directories.
func (w *walk) enter(v visitor) error {
	d := w.chain.last()
	w.pending = append(w.pending, nil)
	if err := v.enter(d); err != nil {
		return w.explain("", err)
	}
	for {
		n, err := syscall.ReadDirent(d.fd, w.buffer[:])
		if err != nil {
			return w.explain("", err)
		}
		if n == 0 {
			return nil
		}
		for rest := w.buffer[:n]; len(rest) > 0; {
			var name string
			var kind byte
			name, kind, rest = nextEntry(rest)
			if name == "." || name == ".." {
				continue
			}
			if err := w.entry(d, name, kind, v); err != nil {
				return w.explain(name, err)
			}
		}
	}
}

func (w *walk) entry(d *directory, name string, kind byte, v visitor) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if w.size.Entries++; w.bound.isBelow(w.size) {
		return ErrTooLarge
	}
	if kind == syscall.DT_UNKNOWN { // a file system without types in its directories
		var st syscall.Stat_t
		if err := openat.Stat(d.fd, name, &st); err != nil {
			return err
		}
		if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			kind = syscall.DT_DIR
		}
	}
	if kind != syscall.DT_DIR {
		return v.entry(d.fd, name)
	}
	if w.nameBytes += len(name) + nameSize; w.nameBytes > maxNameBytes {
		return errTooMany
	}
	last := len(w.pending) - 1
	w.pending[last] = append(w.pending[last], name)
	return nil
}

// nextEntry returns the first entry that getdents64 has put into buffer, and the rest.
func nextEntry(buffer []byte) (name string, kind byte, rest []byte) {
	const sizeAt, kindAt, nameAt = 16, 18, 19
	size := binary.NativeEndian.Uint16(buffer[sizeAt:])
	end := nameAt
	for buffer[end] != 0 {
		end++
	}
	return string(buffer[nameAt:end]), buffer[kindAt], buffer[size:]
}

// explain adds the path to errors of the system.
func (w *walk) explain(name string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return &fs.PathError{Op: w.op, Path: w.chain.path(name), Err: errno}
}
