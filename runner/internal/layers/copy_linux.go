package layers

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"hermes-exec/runner/internal/openat"
	"hermes-exec/runner/internal/wipe"
)

// Copy copies the upper directory `from` to the new directory `to`: contents with their holes,
// owners, modes, extended attributes (also overlayfs's), times, names of one file, symbolic links,
// FIFOs, sockets and whiteouts. Beyond the bound it fails with ErrTooLarge, and with ESTALE if
// entries of `from` are replaced meanwhile. After a failure nothing of `to` is left.
func Copy(ctx context.Context, from, to string, bound Bound) error {
	return newCopier(ctx, bound).run(from, to)
}

// CopyOwned copies as Copy, for a directory to which a tenant writes with the rights of owners.From, and
// returns what it has left out: devices, and the entries of other users.
func CopyOwned(ctx context.Context, from, to string, owners Owners) (Skipped, error) {
	c := newCopier(ctx, Bound{})
	c.owners = &owners
	if !owners.Others { // the user could not give a file capabilities
		c.xattrs.wanted = func(name string) bool { return name != capability && isCopied(name) }
	}
	err := c.run(from, to)
	return c.skipped, err
}

// copier makes the entries of a walk again.
type copier struct {
	ctx     context.Context
	bound   Bound
	copied  int64 // bytes of data
	to      chain // the copies of the directories of the walk
	links   map[fileID]int
	store   linkStore
	xattrs  *xattrReader
	noClone bool // the file system cannot share data between files
	noRange bool // nor copy it in the kernel
	buffer  []byte
	owners  *Owners // nil: as they are
	skipped Skipped
}

func newCopier(ctx context.Context, bound Bound) *copier {
	return &copier{ctx: ctx, bound: bound, xattrs: newXattrReader(isCopied), links: map[fileID]int{}}
}

func (c *copier) run(from, to string) (err error) {
	if err := syscall.Mkdir(to, 0o700); err != nil {
		return &fs.PathError{Op: "mkdir", Path: to, Err: err}
	}
	defer func() {
		c.to.close()
		c.store.close()
		if err != nil {
			_ = wipe.RemoveTree(to)
		}
	}()
	if err := c.to.start(to); err != nil {
		return &fs.PathError{Op: "open", Path: to, Err: err}
	}
	w := walk{ctx: c.ctx, op: "copy", bound: c.bound}
	if c.owners != nil {
		w.skips = c.skips
	}
	return w.run(from, c)
}

// skips reports whether the copy leaves out a directory.
func (c *copier) skips(dir int, name string) (bool, error) {
	var st syscall.Stat_t
	if err := openat.Stat(dir, name, &st); err != nil {
		return false, err
	}
	return !c.accepts(name, &st), nil
}

// accepts gives st the owner of the copy, and reports whether there is one; otherwise it notes the
// entry as left out.
func (c *copier) accepts(name string, st *syscall.Stat_t) bool {
	if c.owners == nil {
		return true
	}
	why := ""
	switch kind := st.Mode & syscall.S_IFMT; {
	case !c.owners.apply(st):
		why = "it belongs to another user"
	case kind == syscall.S_IFBLK || kind == syscall.S_IFCHR:
		why = "it is a device"
	default:
		return true
	}
	c.skipped.add(c.to.path(name), why)
	return false
}

// apply gives st the owner of its copy, if it has one.
func (o *Owners) apply(st *syscall.Stat_t) bool {
	isOwn := int(st.Uid) == o.From.UID
	if isOwn {
		st.Uid = uint32(o.To.UID)
	}
	if int(st.Gid) == o.From.GID || !o.Others {
		st.Gid = uint32(o.To.GID)
	}
	return isOwn || o.Others
}

func (c *copier) enter(d *directory) error {
	if d.name == "" {
		return nil // the first directory exists
	}
	if err := syscall.Mkdirat(c.to.last().fd, d.name, 0o700); err != nil {
		return err
	}
	return c.to.push(d.name)
}

func (c *copier) leave(d *directory) error {
	if d.name == "" {
		if err := c.store.remove(c.to.last().fd); err != nil {
			return err
		}
	}
	to, err := c.to.pop()
	defer syscall.Close(to.fd)
	if err != nil {
		return err
	}
	st := d.stat
	if c.owners != nil && !c.owners.apply(&st) {
		return errChanged
	}
	return c.metadata(to.fd, d.fd, &st)
}

func (c *copier) entry(dir int, name string) error {
	var st syscall.Stat_t
	if err := openat.Stat(dir, name, &st); err != nil {
		return err
	}
	if !c.accepts(name, &st) {
		return nil
	}
	to := c.to.last().fd
	switch kind := st.Mode & syscall.S_IFMT; {
	case kind == syscall.S_IFREG && st.Nlink > 1:
		return c.link(dir, name, to, &st)
	case kind == syscall.S_IFREG:
		return c.file(dir, name, to, &st)
	case kind == syscall.S_IFLNK:
		return copySymlink(dir, name, to, &st)
	case isWhiteout(&st):
		return syscall.Mknodat(to, name, syscall.S_IFCHR, 0)
	case kind == syscall.S_IFIFO || kind == syscall.S_IFSOCK:
		return c.special(dir, name, to, &st)
	case kind == syscall.S_IFDIR:
		return errChanged
	}
	return syscall.EPERM // a device, which no tenant can make
}

// isWhiteout reports whether an entry hides the entry of this name in lower layers.
func isWhiteout(st *syscall.Stat_t) bool {
	return st.Mode&syscall.S_IFMT == syscall.S_IFCHR && st.Rdev == 0
}

// link copies a file with several names once.
func (c *copier) link(dir int, name string, to int, st *syscall.Stat_t) error {
	if number, ok := c.links[idOf(st)]; ok {
		return c.store.link(number, to, name)
	}
	if err := c.file(dir, name, to, st); err != nil {
		return err
	}
	c.links[idOf(st)] = c.store.count
	return c.store.add(to, name, c.to.dirs[0].fd)
}

func (c *copier) file(dir int, name string, to int, seen *syscall.Stat_t) error {
	in, err := openat.OpenLocked(dir, name, openat.FileFlags)
	if err != nil {
		return err
	}
	defer syscall.Close(in)
	var st syscall.Stat_t
	if err := syscall.Fstat(in, &st); err != nil {
		return err
	}
	if idOf(&st) != idOf(seen) || st.Mode&syscall.S_IFMT != syscall.S_IFREG ||
		c.owners != nil && !c.owners.apply(&st) {
		return errChanged
	}
	out, err := syscall.Openat(to, name, openat.NewFileFlags, 0o600)
	if err != nil {
		return err
	}
	defer syscall.Close(out)
	if err := c.contents(out, in, st.Size); err != nil {
		return err
	}
	return c.metadata(out, in, &st)
}

// metadata gives an open copy what its source has besides its contents.
func (c *copier) metadata(out, in int, st *syscall.Stat_t) error {
	return setMetadata(out, st, func() error {
		return c.xattrs.each(in, func(name string, value []byte) error { return setXattr(out, name, value) })
	})
}

// setMetadata gives an open entry owner, attributes, mode and times, in this order: a new owner clears
// set-user-id bits and capabilities, and a user who may not write a file may not give it attributes.
func setMetadata(fd int, st *syscall.Stat_t, setAttributes func() error) error {
	if err := syscall.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := setAttributes(); err != nil {
		return err
	}
	if err := syscall.Fchmod(fd, st.Mode&0o7777); err != nil {
		return err
	}
	return openat.SetTimes(fd, "", [2]syscall.Timespec{st.Atim, st.Mtim})
}

func copySymlink(dir int, name string, to int, st *syscall.Stat_t) error {
	target, err := openat.ReadLink(dir, name)
	if err != nil {
		return err
	}
	return makeSymlink(target, to, name, st)
}

func makeSymlink(target string, dir int, name string, st *syscall.Stat_t) error {
	if err := openat.Symlink(target, dir, name); err != nil {
		return err
	}
	if err := syscall.Fchownat(dir, name, int(st.Uid), int(st.Gid), openat.SymlinkNofollow); err != nil {
		return err
	}
	return openat.SetTimes(dir, name, [2]syscall.Timespec{st.Atim, st.Mtim})
}

// special copies a FIFO or a socket, which are never opened: a process may wait for that.
func (c *copier) special(dir int, name string, to int, st *syscall.Stat_t) error {
	in, err := openat.OpenHandle(dir, name)
	if err != nil {
		return err
	}
	defer syscall.Close(in)
	attributes := map[string][]byte{}
	err = c.xattrs.eachOfHandle(in, func(name string, value []byte) error {
		attributes[name] = append([]byte{}, value...)
		return nil
	})
	if err != nil {
		return err
	}
	return makeSpecial(to, name, st, attributes)
}

func makeSpecial(dir int, name string, st *syscall.Stat_t, attributes map[string][]byte) error {
	if err := syscall.Mknodat(dir, name, st.Mode&syscall.S_IFMT|0o600, 0); err != nil {
		return err
	}
	if err := syscall.Fchownat(dir, name, int(st.Uid), int(st.Gid), openat.SymlinkNofollow); err != nil {
		return err
	}
	out, err := openat.OpenHandle(dir, name)
	if err != nil {
		return err
	}
	defer syscall.Close(out)
	if err := syscall.Chmod(openat.HandlePath(out), st.Mode&0o7777); err != nil {
		return err
	}
	for name, value := range attributes {
		if err := syscall.Setxattr(openat.HandlePath(out), name, value, 0); err != nil {
			return err
		}
	}
	return openat.SetTimes(dir, name, [2]syscall.Timespec{st.Atim, st.Mtim})
}

// contents copies the data of a file and leaves its holes out.
func (c *copier) contents(out, in int, size int64) error {
	if size == 0 {
		return nil
	}
	if !c.noClone {
		err := clone(out, in)
		if err == nil || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return err
		}
		c.noClone = true
	}
	end := int64(0)
	for end < size {
		begin, stop, err := nextData(in, end, size)
		if err != nil {
			return err
		}
		if begin == stop {
			break
		}
		if c.copied += stop - begin; c.bound.Bytes > 0 && c.copied > c.bound.Bytes {
			return ErrTooLarge
		}
		if err := c.data(out, in, begin, stop); err != nil {
			return err
		}
		end = stop
	}
	if end < size {
		return syscall.Ftruncate(out, size)
	}
	return nil
}
