package leftover

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"hermes-exec/runner/internal/wipe"
)

const (
	// MaxDepth is how many levels of directories Flatten leaves.
	MaxDepth     = 200
	overlayMagic = 0x794c7630
)

// Flatten removes the directories more than MaxDepth levels below root, on its own file system,
// within a time. On an overlay it visits only directories that changed after since: a new entry
// changes each directory above it, because these are copied up.
func Flatten(root string, since time.Time, within time.Duration) []string {
	dir, err := os.Open(root)
	if err != nil {
		return []string{err.Error()}
	}
	defer dir.Close()
	var own syscall.Stat_t
	var system syscall.Statfs_t
	if err := syscall.Fstat(int(dir.Fd()), &own); err != nil {
		return []string{fmt.Sprintf("%s: %v", root, err)}
	}
	f := flattener{wiper: wipe.New(within), until: time.Now().Add(within), device: own.Dev}
	if syscall.Fstatfs(int(dir.Fd()), &system) == nil && system.Type == overlayMagic {
		f.since = since.Unix()
	}
	f.visit(dir, 1)
	return f.wiper.Problems
}

type flattener struct {
	wiper  *wipe.Wiper
	until  time.Time
	device uint64
	since  int64 // seconds since the epoch
}

// visit visits the directories in dir, which is at this level.
func (f *flattener) visit(dir *os.File, level int) {
	for time.Now().Before(f.until) {
		entries, err := dir.ReadDir(512)
		for _, entry := range entries {
			if entry.IsDir() {
				f.visitEntry(dir, entry.Name(), level)
			}
		}
		if err != nil || len(entries) == 0 {
			return
		}
	}
}

func (f *flattener) visitEntry(parent *os.File, name string, level int) {
	flags := syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fd, err := syscall.Openat(int(parent.Fd()), name, flags, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name))
	defer dir.Close()
	var info syscall.Stat_t
	if syscall.Fstat(fd, &info) != nil || info.Dev != f.device || info.Ctim.Sec < f.since {
		return
	}
	if level > MaxDepth {
		f.wiper.WipeIn(parent, name)
		return
	}
	f.visit(dir, level+1)
}
