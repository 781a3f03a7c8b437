package shared

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"hermes-exec/runner/internal/rights"
	"hermes-exec/runner/internal/tree"
	"hermes-exec/runner/internal/users"
)

const (
	// maxDepth bounds how deep nested world-writable directories are searched.
	maxDepth = 32
	// stepBatch is how many entries are handled between two checks of the time.
	stepBatch = 256
	// slowPause is the pause of a slow sweep after each batch.
	slowPause = 5 * time.Millisecond
)

var (
	errLate   = errors.New("out of time")
	errOthers = errors.New("not of a holder that has ended")
	errLiving = errors.New("of a holder that has not ended")
)

// sweep is one search for files of holders that have ended. Tenants move files meanwhile, so each
// step is relative to an open directory, and no link is followed. It never enters directories of
// living holders: files of others in them are removed with the directory. It removes the entries of
// a directory with the rights of the directory's owner, who has ended, so that the kernel protects
// a neighbour's files even if a name leads to them.
type sweep struct {
	ids    *users.Allocator
	holder Holder
	all    bool // remove the files of other ended holders too
	looks  int  // how many entries of others it may look at, 0 for all
	until  time.Time
	slow   bool

	incomplete bool // it missed something, or something could not be removed
	expired    bool
	steps      int
	looked     int
	user       uint32 // whose rights the thread has
}

// run searches some directories, on a thread of its own.
func (s *sweep) run(dirs []string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		for _, path := range dirs {
			if dir, err := openDirAt(atCwd, path); err == nil {
				s.search(dir, 0)
				dir.Close()
			} else if !errors.Is(err, syscall.ENOENT) {
				s.incomplete = true
			}
		}
	}()
	<-done
}

// search searches an open directory in which anybody may leave files, and its subdirectories that
// belong to no holder.
func (s *sweep) search(dir *os.File, depth int) {
	var own syscall.Stat_t
	if syscall.Fstat(int(dir.Fd()), &own) != nil {
		s.incomplete = true
		return
	}
	err := tree.EachName(dir, func(name string) (removed, more bool) {
		if s.step() != nil {
			return false, false
		}
		st, err := statAt(int(dir.Fd()), name)
		if err != nil || st.Dev != own.Dev {
			return false, true
		}
		assigned, _ := s.ids.Status(st.Uid)
		switch gone := isGone(s.ids, s.holder, st.Uid); {
		case gone && (s.all || st.Uid == s.holder.UID):
			return s.remove(dir, name, st.Uid), !s.expired
		case gone:
			s.incomplete = true
		case assigned || !isWorldWritable(&st):
		case depth >= maxDepth:
			s.incomplete = true
		default:
			s.searchIn(dir, name, depth)
		}
		s.looked++
		s.expired = s.expired || s.looked == s.looks
		return false, !s.expired
	})
	s.incomplete = s.incomplete || s.expired || err != nil
}

func (s *sweep) searchIn(dir *os.File, name string, depth int) {
	if below, err := openDirAt(int(dir.Fd()), name); err == nil {
		s.search(below, depth+1)
		below.Close()
	}
}

// remove removes an entry of a holder whose processes have ended.
func (s *sweep) remove(dir *os.File, name string, owner uint32) bool {
	defer func() {
		if s.become(0) != nil {
			s.incomplete = true
			runtime.Goexit() // a thread that cannot switch back must not go on
		}
	}()
	if s.become(owner) != nil {
		s.incomplete = true
		return false
	}
	parent := int(dir.Fd())
	r := tree.Remover{Force: true, Step: s.step, Fail: func(string, error) { s.incomplete = true }}
	r.Keep = s.keep
	r.Enter = func(fd int) error {
		if fd == parent {
			return s.become(owner)
		}
		return s.enter(fd)
	}
	return r.Remove(parent, name)
}

// keep leaves entries of living holders where they are, in directories of holders that have ended.
func (s *sweep) keep(dir int, name string) error {
	st, err := statAt(dir, name)
	if err != nil {
		return nil // it is removed with the rights of the directory's owner, or stays
	}
	if _, living := s.ids.Status(st.Uid); living && st.Uid != s.holder.UID {
		return errLiving
	}
	return nil
}

// enter takes the rights of a directory's owner, if that is a holder that has ended.
func (s *sweep) enter(dir int) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(dir, &st); err != nil {
		return err
	}
	if !isGone(s.ids, s.holder, st.Uid) {
		return errOthers
	}
	return s.become(st.Uid)
}

// become gives the thread the file system rights of a user; 0 is the runner.
func (s *sweep) become(uid uint32) error {
	if uid == s.user {
		return nil
	}
	gid := uid
	if uid == s.holder.UID {
		gid = s.holder.GID
	}
	if uid == 0 {
		gid = 0
	}
	if err := rights.ThreadFS(uid, gid, nil); err != nil {
		return err
	}
	s.user = uid
	return nil
}

// step fails after the time limit.
func (s *sweep) step() error {
	if s.steps++; s.steps%stepBatch == 0 {
		if s.slow {
			time.Sleep(slowPause)
		}
		s.expired = s.expired || !s.until.IsZero() && time.Now().After(s.until)
	}
	if s.expired {
		return errLate
	}
	return nil
}

const (
	atCwd = -100
	oPath = 0x200000
)

func openDirAt(dir int, name string) (*os.File, error) {
	flags := syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fd, err := syscall.Openat(dir, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// statAt is lstat of an entry of an open directory.
func statAt(dir int, name string) (st syscall.Stat_t, err error) {
	fd, err := syscall.Openat(dir, name, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return st, err
	}
	defer syscall.Close(fd)
	return st, syscall.Fstat(fd, &st)
}
