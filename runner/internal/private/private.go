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

// Open makes a directory, with missing parents, and opens it. mode is 0o700, or 0o711 if slots with
// uids of their own pass through it. It also makes parts in it, with the same mode.
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

// Remove removes the directory with everything in it, unless it was replaced. It returns the
// problems.
func (d *Directory) Remove() []string {
	defer d.file.Close()
	if err := d.Verify(); err != nil {
		return []string{err.Error()}
	}
	w := wipe.New(wipe.Timeout)
	w.Wipe(d.Path)
	return w.Problems
}

// Verify checks that the directory is still at its path, and that nobody else may replace it.
func (d *Directory) Verify() error {
	if now, err := os.Lstat(d.Path); err != nil || !os.SameFile(now, d.info) {
		return fmt.Errorf("the runner's directory %s was moved or replaced", d.Path)
	}
	return Check(filepath.Dir(d.Path))
}

// Check returns an error unless only root and this user decide where a path without links leads.
// They must own each directory on the way, and others may write to none of them, except to sticky
// directories and to directories below a directory of this user that nobody else can enter. The
// last exception does not hold for root: the slots of root have users of their own, whose working
// directories are below it. The root directory of an image may belong to another user and be
// writable to a group: that user made the image.
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
			return fmt.Errorf("%s belongs to another user (%d), who could replace its entries", dir, uid)
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
