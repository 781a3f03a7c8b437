package slots

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"hermes-exec/runner/internal/rights"
	"hermes-exec/runner/internal/sysv"
	"hermes-exec/runner/internal/tree"
	"hermes-exec/runner/internal/wipe"
)

// sharedPlaces are directories of the box in which every user may leave files.
var sharedPlaces = []string{"/dev/shm", "/tmp", "/var/tmp", "/run/lock", "/dev/mqueue"}

// wipeShared removes what a slot with a uid of its own has left in places that
// it shares with others: files there, and System V IPC objects.
func (s *slot) wipeShared() []string {
	u := s.setup
	if !s.leavesWithOthers() {
		return nil
	}
	var problems []string
	if s.ownUID {
		problems = clearKeys(u.UID, u.GID)
	}
	if u.View.Pids && !s.container {
		return problems
	}
	w := wipe.New(wipe.Budget)
	until := time.Now().Add(searchTime)
	for _, place := range s.sharedPlaces() {
		if dir, err := openDirAt(atCwd, place); err == nil {
			s.wipeOwned(w, dir, until, 0)
			dir.Close()
		}
	}
	problems = append(problems, w.Problems...)
	if u.View.Pids {
		return problems // System V objects went with their namespace
	}
	return append(problems, sysv.Remove(u.UID, func(do func() error) error { return asThreadOf(u.UID, u.GID, do) })...)
}

// clearKeys empties the keyrings of a uid, which the kernel keeps for some time
// after its last process. The problems are what is left.
func clearKeys(uid, gid uint32) []string {
	if err := asThreadOf(uid, gid, rights.ClearUserKeys); err != nil {
		return []string{"the keys of the slot's user cannot be removed: " + err.Error()}
	}
	return nil
}

// asThreadOf runs do on a thread of its own that has become a user.
func asThreadOf(uid, gid uint32, do func() error) error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		done <- rights.AsUser(uid, gid, do)
	}()
	return <-done
}

const (
	// searchTime is how long a reset goes through the directories of others.
	searchTime = 3 * time.Second
	// deepestSearch is how deep.
	deepestSearch = 32
	atCwd         = -100
	oPath         = 0x200000
)

// wipeOwned removes what the slot has in an open directory in which anybody may
// leave files, and in the directories of others in it: one below them may be
// writable to all. Tenants move things about in them meanwhile, so that each
// step is relative to an open directory, and no link is followed.
func (s *slot) wipeOwned(w *wipe.Wiper, dir *os.File, until time.Time, depth int) {
	var own syscall.Stat_t
	if syscall.Fstat(int(dir.Fd()), &own) != nil {
		return
	}
	others := map[string]bool{}
	tree.EachName(dir, func(name string) bool {
		st, err := statAt(dir, name)
		switch {
		case err != nil || st.Dev != own.Dev:
		case st.Uid == s.setup.UID:
			return w.WipeIn(dir, name)
		case isOpen(&st) || s.m.ids.Has(st.Uid) && isPassable(&st):
			others[name] = true
		}
		return false
	})
	for name := range others {
		if depth >= deepestSearch || time.Now().After(until) {
			return
		}
		if below, err := openDirAt(int(dir.Fd()), name); err == nil {
			s.wipeOwned(w, below, until, depth+1)
			below.Close()
		}
	}
}

func openDirAt(dir int, name string) (*os.File, error) {
	flags := syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fd, err := syscall.Openat(dir, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// statAt is lstat of an entry of an open directory.
func statAt(dir *os.File, name string) (st syscall.Stat_t, err error) {
	fd, err := syscall.Openat(int(dir.Fd()), name, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return st, err
	}
	defer syscall.Close(fd)
	return st, syscall.Fstat(fd, &st)
}

// isOpen tells whether this is a directory that anybody may write to.
func isOpen(st *syscall.Stat_t) bool {
	return st.Mode&syscall.S_IFMT == syscall.S_IFDIR && st.Mode&0o002 != 0
}

// isPassable tells whether this is a directory that anybody may pass through.
func isPassable(st *syscall.Stat_t) bool {
	return st.Mode&syscall.S_IFMT == syscall.S_IFDIR && st.Mode&0o001 != 0
}

// sharedPlaces are where the slot may have left files.
func (s *slot) sharedPlaces() []string {
	if s.container {
		return s.m.openPlaces()
	}
	return usualPlaces()
}

// usualPlaces are the shared places that there are; what leads to them is
// nobody's to change.
func usualPlaces() []string {
	var found []string
	for _, place := range sharedPlaces {
		if real, err := filepath.EvalSymlinks(place); err == nil && !slices.Contains(found, real) {
			found = append(found, real)
		}
	}
	return found
}

// findOpenPlaces gives the usual places and all other directories that anybody
// may write to, in the image of a container and in its file systems in memory.
// Other mounts are left out: they are shared on purpose. It is called before
// there are tenants, who would make more of them.
func findOpenPlaces(home string) []string {
	found := usualPlaces()
	var visit func(dir string, device uint64)
	visit = func(dir string, device uint64) {
		var st syscall.Stat_t
		if dir == home || syscall.Lstat(dir, &st) != nil || st.Dev != device && !inMemory(dir) {
			return
		}
		if isOpen(&st) && !slices.Contains(found, dir) {
			found = append(found, dir)
		}
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if entry.IsDir() {
				visit(filepath.Join(dir, entry.Name()), st.Dev)
			}
		}
	}
	var root syscall.Stat_t
	if syscall.Stat("/", &root) == nil {
		visit("/", root.Dev)
	}
	return found
}

const tmpfsMagic = 0x01021994

func inMemory(dir string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && int64(st.Type) == tmpfsMagic
}
