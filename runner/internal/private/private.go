package private

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"hermes-exec/runner/internal/wipe"
)

const (
	groupWrites = 0o020
	groupEnters = 0o010
	otherWrites = 0o002
	otherEnters = 0o001
)

// Directory is an open directory of this user's own.
type Directory struct {
	Path string // without links
	file *os.File
	info os.FileInfo
}

// Open makes a directory, and the way there, where there is none, and opens it.
// mode is 0o700, or 0o711 where slots with uids of their own pass through. It
// makes parts in it too, of the same mode.
func Open(path string, mode os.FileMode, parts ...string) (*Directory, error) {
	above, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(above, mode); err != nil {
		return nil, err
	}
	if above, err = filepath.EvalSymlinks(above); err != nil {
		return nil, err
	}
	if err := Check(above); err != nil {
		return nil, err
	}
	d := &Directory{Path: filepath.Join(above, filepath.Base(path))}
	if err := os.Mkdir(d.Path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	flags := syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW
	if d.file, err = os.OpenFile(d.Path, flags, 0); err != nil {
		return nil, err
	}
	if d.info, err = d.file.Stat(); err == nil && owner(d.info) != os.Geteuid() {
		err = fmt.Errorf("%s belongs to another user (%d)", d.Path, owner(d.info))
	} else if err == nil && d.info.Mode()&(groupWrites|otherWrites) != 0 {
		err = fmt.Errorf("others may write to %s, and may have put something there: remove it", d.Path)
	}
	if err == nil {
		err = d.file.Chmod(mode)
	}
	for _, part := range parts {
		err = cmp.Or(err, os.MkdirAll(filepath.Join(d.Path, part), mode))
	}
	if err != nil {
		_ = d.file.Close()
		return nil, err
	}
	return d, nil
}

// Remove removes the directory with all that is in it, unless another one has
// its place. It returns what is left.
func (d *Directory) Remove() []string {
	defer d.file.Close()
	if err := d.Verify(); err != nil {
		return []string{err.Error()}
	}
	w := wipe.New(wipe.Timeout)
	w.Wipe(d.Path)
	return w.Problems
}

// Verify says whether the directory is still at its path, and whether nobody
// else may put another one there.
func (d *Directory) Verify() error {
	if now, err := os.Lstat(d.Path); err != nil || !os.SameFile(now, d.info) {
		return fmt.Errorf("the runner's directory %s was moved or replaced", d.Path)
	}
	return Check(filepath.Dir(d.Path))
}

// Check says whether nobody but root and this user decides what a path without
// links leads to: they own each directory on the way, and others may write to
// none of them unless it is sticky, or lies below a directory of this user's that
// nobody else can enter. For root that is no reason: its slots have users of
// their own, and their working directories are below it. The root of an image
// may be another user's, and writable to a group, for that is who made the image.
func Check(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	var open error // the first that others may write to
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		mode, uid := info.Mode(), owner(info)
		switch {
		case dir != "/" && uid != 0 && uid != os.Geteuid() && !isUnmapped(uid):
			return fmt.Errorf("%s belongs to another user (%d), who could exchange what is in it", dir, uid)
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		case uid == os.Geteuid() && uid != 0 && mode&(groupEnters|otherEnters) == 0:
			open = nil
		case open == nil && mode&os.ModeSticky == 0 && (mode&otherWrites != 0 ||
			dir != "/" && mode&groupWrites != 0 && !isPrivateGroup(dir, info)):
			open = fmt.Errorf("others may write to %s (mode %04o, not sticky): chmod go-w, or +t", dir, mode.Perm())
		}
		if dir == "/" {
			return open
		}
	}
}

func owner(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
