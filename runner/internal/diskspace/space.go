package diskspace

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"hermes-exec/runner/internal/disk"
)

// Space is the free space of a file system for a user: bytes, and files if it counts them. Its
// sizes are 0 if it does not report them.
type Space struct{ Bytes, Size, Files, MaxFiles int64 }

// A file system is nearly full with less than the smaller of a fixed amount and a fiftieth of its
// size.
const (
	nearlyFullBytes = 128 << 20
	nearlyFullFiles = 1024
	nearlyFullShare = 50
	enoughFactor    = 4 // times the limit of nearly full
)

// ext4ReservedBlocks are blocks that ext4 counts as free and gives to nobody, root included: as
// many, or a fiftieth of all. An overlay hides the file system below it, so they are subtracted
// everywhere.
const ext4ReservedBlocks = 4096

// NearlyFullLimit returns the most that a nearly full file system of this size has left.
func (r Space) NearlyFullLimit() Space {
	return Space{Bytes: min(nearlyFullBytes, r.Size/nearlyFullShare),
		Files: min(nearlyFullFiles, r.MaxFiles/nearlyFullShare)}
}

// EnoughLimit returns the free space that a file system needs to be of use again after it was
// nearly full. A slot that uses less is not the cause.
func (r Space) EnoughLimit() Space {
	few := r.NearlyFullLimit()
	return Space{Bytes: enoughFactor * few.Bytes, Files: enoughFactor * few.Files}
}

// HasEnough reports whether that much is left.
func (r Space) HasEnough() bool {
	least := r.EnoughLimit()
	return (r.Size == 0 || r.Bytes > least.Bytes) && (r.MaxFiles == 0 || r.Files > least.Files)
}

// NearlyFull reports whether a write may be refused at any moment.
func (r Space) NearlyFull() bool {
	few := r.NearlyFullLimit()
	return r.Size > 0 && r.Bytes <= few.Bytes || r.MaxFiles > 0 && r.Files <= few.Files
}

// At returns the space at path for a user; root may use reserved space. ok is false if nothing can
// be written.
func At(path string, root bool) (room Space, ok bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil || readOnly(&s) {
		return Space{}, false
	}
	return newSpace(&s, root), true
}

// CheckFiles returns ENOSPC if a file system has no room for n more files.
func CheckFiles(path string, n int) error {
	if room, ok := At(path, true); ok && room.MaxFiles > 0 && room.Files < int64(n) {
		return syscall.ENOSPC
	}
	return nil
}

func newSpace(s *syscall.Statfs_t, root bool) Space {
	free, block := int64(s.Bavail), blockSize(s)
	if root {
		free = max(0, int64(s.Bfree)-min(ext4ReservedBlocks, int64(s.Blocks)/nearlyFullShare))
	}
	room := Space{Bytes: free * block, Size: int64(s.Blocks) * block}
	if files := int64(s.Ffree); files >= 0 { // CephFS has -1: it does not bound their number
		room.Files, room.MaxFiles = files, int64(s.Files)
	}
	return room
}

// Usage is how much of a file system some trees take.
type Usage struct {
	Bytes int64 `json:"bytes"`
	Files int64 `json:"files"`
}

var (
	errTooLong = errors.New("there is too much to measure")
	errTooDeep = errors.New("it is nested too deeply to be measured")
)

const (
	// maxDepth is how deep a tree is measured: each level holds two descriptors.
	maxDepth = 128
	// nameBatch bounds the names held of each directory.
	nameBatch = 128
)

// Measure adds up the files in the tree at path that were changed since a time, without leaving its
// file system and without following links. If something cannot be measured, also within the time,
// it returns an error.
func (u *Usage) Measure(path string, since time.Time, until time.Time) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.ErrUnsupported
	}
	m := measurement{use: u, device: uint64(s.Dev), since: since, until: until}
	m.count(s, true)
	return m.directory(root, 0)
}

type measurement struct {
	use          *Usage
	device       uint64
	since, until time.Time
	steps        int
}

func (m *measurement) directory(root *os.Root, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(nameBatch)
		for _, name := range names {
			if err := m.entry(root, name, depth); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err // otherwise it was removed meanwhile
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (m *measurement) entry(dir *os.Root, name string, depth int) error {
	if m.steps++; m.steps%256 == 0 && time.Now().After(m.until) {
		return errTooLong
	}
	info, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.ErrUnsupported
	}
	if info.IsDir() && uint64(s.Dev) != m.device {
		return nil
	}
	m.count(s, info.IsDir())
	if !info.IsDir() {
		return nil
	}
	below, err := dir.OpenRoot(name)
	if err != nil {
		return err
	}
	defer below.Close()
	if opened, err := below.Stat("."); err != nil || !os.SameFile(info, opened) {
		return err // it was replaced
	}
	return m.directory(below, depth+1)
}

func (m *measurement) count(s *syscall.Stat_t, isDir bool) {
	changed := disk.ChangeTime(s)
	if time.Unix(changed.Unix()).Before(m.since) {
		return
	}
	links := int64(1)
	if !isDir {
		links = max(1, int64(s.Nlink))
	}
	m.use.Files++
	m.use.Bytes += s.Blocks * 512 / links
}
