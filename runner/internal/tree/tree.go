package tree

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	// MaxOpen is how many directories of one path are open at once. A directory below them is moved
	// up, into the top directory of the tree.
	MaxOpen = 64
	// nameBatch bounds the names held of each open directory.
	nameBatch = 64
	// maxPasses is how often a directory is read again: removals may have caused entries to be
	// skipped, and processes may make new ones meanwhile.
	maxPasses = 16
	// maxPath bounds the paths of problems.
	maxPath = 1000
)

// errTooDeep is the error for a directory below MaxOpen others that cannot be moved up.
var errTooDeep = errors.New("too deep, and cannot be moved up")

// Remover removes trees. All of its functions are optional and are called on the caller's thread.
type Remover struct {
	// Step is called before each entry. An error ends the removal.
	Step func() error
	// Enter is called with an open directory before anything is done in it, first and again after
	// each of its subdirectories. After an error the directory stays as it is.
	Enter func(dir int) error
	// Fail is called for entries that cannot be removed, with a path that begins with the name
	// passed to Remove, and the error. An entry may be reported more than once.
	Fail func(path string, err error)
	// Keep returns an error for entries that must stay.
	Keep func(dir int, name string) error
	// Force grants the thread's user the rights that its own directories lack.
	Force bool
	// Shut takes directories from others before they are emptied, so that a process that has one
	// open makes no new entries in it. Directories of another user require root.
	Shut bool

	names       []string // from the top of the tree to the current entry
	top         int      // the open top directory
	movedPrefix string   // prefix of the names of moved directories
	moved       int
	stopped     bool
}

// Remove removes an entry of an open directory, with everything in it, and reports whether it is
// gone.
func (r *Remover) Remove(parent int, name string) bool {
	r.stopped = false
	r.names = r.names[:0]
	return r.entry(parent, name)
}

func (r *Remover) entry(dir int, name string) bool {
	r.names = append(r.names, name)
	defer func() { r.names = r.names[:len(r.names)-1] }()
	if r.stopped {
		return false
	}
	if r.Step != nil {
		if err := r.Step(); err != nil {
			r.stopped = true
			r.fail(err)
			return false
		}
	}
	if r.Keep != nil {
		if err := r.Keep(dir, name); err != nil {
			r.fail(err)
			return false
		}
	}
	err := r.unlink(dir, name)
	switch err {
	case syscall.ENOTEMPTY, syscall.EEXIST:
		err = r.directory(dir, name)
	case syscall.EROFS, syscall.EACCES: // an entry that cannot be removed, such as a mount point, is emptied
		if inner := r.directory(dir, name); inner != syscall.ENOTDIR {
			err = inner
		}
	}
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		r.fail(err)
		return false
	}
	return !r.stopped
}

// unlink removes a file or an empty directory.
func (r *Remover) unlink(dir int, name string) error {
	err := Unlink(dir, name, 0)
	if err == syscall.EACCES && r.Force && syscall.Fchmod(dir, 0o700) == nil {
		err = Unlink(dir, name, 0)
	}
	if err != syscall.EISDIR && err != syscall.EPERM {
		return err
	}
	if removed := Unlink(dir, name, RemoveDir); removed != syscall.ENOTDIR {
		return removed
	}
	return err
}

// directory removes a directory that is not empty.
func (r *Remover) directory(dir int, name string) error {
	if len(r.names) > MaxOpen {
		return r.moveUp(dir, name)
	}
	fd, err := r.open(dir, name)
	if err != nil {
		return err
	}
	if r.Shut {
		takeFromOthers(fd)
	}
	r.empty(fd, name)
	if err := r.reenter(dir, nil); err != nil || r.stopped {
		return err
	}
	return Unlink(dir, name, RemoveDir)
}

// takeFromOthers gives an open directory to the thread's user, with rights for nobody else.
func takeFromOthers(dir int) {
	var st syscall.Stat_t
	const othersWrite = 0o022
	me := os.Geteuid()
	if syscall.Fstat(dir, &st) != nil || st.Mode&othersWrite == 0 && int(st.Uid) == me {
		return
	}
	if int(st.Uid) != me {
		_ = syscall.Fchown(dir, me, -1)
	}
	_ = syscall.Fchmod(dir, 0o700)
}

// reenter enters a directory again, and returns err. If that fails, the removal ends.
func (r *Remover) reenter(dir int, err error) error {
	if r.Enter == nil {
		return err
	}
	if failed := r.Enter(dir); failed != nil {
		r.stopped = true
		return failed
	}
	return err
}

// empty removes everything in the open directory fd and closes it.
func (r *Remover) empty(fd int, name string) {
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	if len(r.names) == 1 {
		r.top = fd
	}
	for again := true; again; {
		moved := r.moved
		err := EachName(file, func(name string) (removed, more bool) { return r.entry(fd, name), !r.stopped })
		if err != nil {
			r.fail(err)
		}
		again = len(r.names) == 1 && r.moved != moved && !r.stopped && err == nil
	}
}

// moveUp makes a deep directory an entry of the top directory, which is read again.
func (r *Remover) moveUp(dir int, name string) error {
	if r.movedPrefix == "" {
		random := make([]byte, 8)
		if _, err := rand.Read(random); err != nil {
			return err
		}
		r.movedPrefix = ".deep-" + hex.EncodeToString(random) + "-"
	}
	to := r.movedPrefix + strconv.Itoa(r.moved+1)
	err := rename(dir, name, r.top, to)
	if err == syscall.EACCES && r.Force && grantOwner(dir, name) == nil {
		err = rename(dir, name, r.top, to)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errTooDeep, err)
	}
	r.moved++
	return nil
}

func (r *Remover) fail(err error) {
	if r.Fail == nil {
		return
	}
	path := strings.Join(r.names, "/")
	if len(path) > maxPath {
		path = path[:maxPath/2] + "…" + path[len(path)-maxPath/2:]
	}
	r.Fail(path, err)
}

// EachName reads an open directory in parts, since it may be huge, until more is false. If do has
// removed an entry, it reads the directory again, at most maxPasses times, because other entries
// may have been skipped.
func EachName(dir *os.File, do func(name string) (removed, more bool)) error {
	again := true
	for pass := 0; again && pass < maxPasses; pass++ {
		again = false
		for {
			names, err := dir.Readdirnames(nameBatch)
			for _, name := range names {
				removed, more := do(name)
				if !more {
					return nil
				}
				again = again || removed
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return nil
}
