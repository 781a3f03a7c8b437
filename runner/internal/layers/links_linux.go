package layers

import (
	"strconv"
	"syscall"

	"hermes-exec/runner/internal/node"
	"hermes-exec/runner/internal/openat"
	"hermes-exec/runner/internal/tree"
)

// linkStore gives files with several names one more, a number in a directory of its own, until all
// of their names are made. So no path is looked up again. Its directory lies in the new layer.
type linkStore struct {
	name  string // of the directory; empty: not made yet
	dir   int
	count int // numbers from 0
}

// add stores a new file under the next number. top is the layer's directory.
func (s *linkStore) add(dir int, name string, top int) error {
	if s.name == "" {
		at := node.NewTempName()
		if err := syscall.Mkdirat(top, at, 0o700); err != nil {
			return err
		}
		fd, err := syscall.Openat(top, at, openat.DirFlags, 0)
		if err != nil {
			return err
		}
		s.name, s.dir = at, fd
	}
	if s.count == maxLinked {
		return errTooMany
	}
	if err := openat.Link(dir, name, s.dir, strconv.Itoa(s.count)); err != nil {
		return err
	}
	s.count++
	return nil
}

// link gives a stored file a further name.
func (s *linkStore) link(number, dir int, name string) error {
	return openat.Link(s.dir, strconv.Itoa(number), dir, name)
}

// remove removes the numbers and the directory.
func (s *linkStore) remove(top int) error {
	if s.name == "" {
		return nil
	}
	for number := range s.count {
		if err := tree.Unlink(s.dir, strconv.Itoa(number), 0); err != nil {
			return err
		}
	}
	return tree.Unlink(top, s.name, tree.RemoveDir)
}

func (s *linkStore) close() {
	if s.name != "" {
		_ = syscall.Close(s.dir)
	}
}
