package layers

import (
	"strings"
	"syscall"

	"hermes-exec/runner/internal/openat"
)

const (
	// maxOpen is how many directories of one chain are open at once, besides the first.
	maxOpen = 32
)

// errChanged is the error for a tree that another process changes.
const errChanged = syscall.ESTALE

// directory is one directory of a chain.
type directory struct {
	fd   int // -1: closed, because many directories below it are open
	name string
	stat syscall.Stat_t // when it was opened

	unlocked bool // its mode, which kept its owner out, has to be set again
}

// chain is a path of directories, each of which was opened in the one before it. Directories in the
// middle are closed and opened again as the parent of the one below them, which must be the same
// directory as before.
type chain struct{ dirs []directory }

// start opens the first directory.
func (c *chain) start(path string) error {
	fd, err := openat.OpenLocked(openat.WorkingDir, path, openat.DirFlags)
	if err != nil {
		return err
	}
	return c.add(fd, "")
}

func (c *chain) add(fd int, name string) error {
	c.dirs = append(c.dirs, directory{fd: fd, name: name})
	d := c.last()
	if err := syscall.Fstat(fd, &d.stat); err != nil {
		return err
	}
	if d.unlocked = openat.IsLocked(&d.stat, openat.OwnerVisits); d.unlocked {
		if err := syscall.Fchmod(fd, d.stat.Mode&0o7777|openat.OwnerVisits); err != nil {
			return err
		}
	}
	if middle := len(c.dirs) - 1 - maxOpen; middle > 0 && c.dirs[middle].fd >= 0 {
		_ = syscall.Close(c.dirs[middle].fd)
		c.dirs[middle].fd = -1
	}
	return nil
}

func (c *chain) last() *directory { return &c.dirs[len(c.dirs)-1] }

// push opens a directory in the last one.
func (c *chain) push(name string) error {
	fd, err := openat.OpenLocked(c.last().fd, name, openat.DirFlags)
	if err != nil {
		return err
	}
	return c.add(fd, name)
}

// pop removes the last directory and returns it; the caller closes it. The one before it is open
// then.
func (c *chain) pop() (directory, error) {
	last := *c.last()
	defer last.lock()
	if c.dirs = c.dirs[:len(c.dirs)-1]; len(c.dirs) == 0 || c.last().fd >= 0 {
		return last, nil
	}
	fd, err := openat.Open(last.fd, "..", openat.DirFlags)
	if err != nil {
		return last, err
	}
	c.last().fd = fd
	var now syscall.Stat_t
	if err = syscall.Fstat(fd, &now); err == nil && idOf(&now) != idOf(&c.last().stat) {
		err = errChanged
	}
	return last, err
}

func (c *chain) close() {
	for _, d := range c.dirs {
		if d.fd >= 0 {
			d.lock()
			_ = syscall.Close(d.fd)
		}
	}
	c.dirs = nil
}

// lock sets the mode again that kept the owner out.
func (d *directory) lock() {
	if d.unlocked {
		_ = syscall.Fchmod(d.fd, d.stat.Mode&0o7777)
	}
}

// path returns the path from the first directory to an entry of the last, shortened to maxPath.
func (c *chain) path(name string) string {
	names := make([]string, 0, len(c.dirs))
	for _, d := range c.dirs[min(1, len(c.dirs)):] {
		names = append(names, d.name)
	}
	if name != "" {
		names = append(names, name)
	}
	return shorten(strings.Join(names, "/"))
}

// fileID identifies a file for as long as it exists.
type fileID struct{ device, number uint64 }

func idOf(st *syscall.Stat_t) fileID { return fileID{st.Dev, st.Ino} }
