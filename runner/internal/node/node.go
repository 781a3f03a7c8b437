package node

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io/fs"
	"syscall"

	"hermes-exec/runner/internal/disk"
)

var typeNames = map[fs.FileMode]string{0: "file", fs.ModeDir: "dir", fs.ModeSymlink: "link", fs.ModeNamedPipe: "fifo",
	fs.ModeSocket: "socket", fs.ModeDevice | fs.ModeCharDevice: "char"}

// TypeName is what the protocol calls a type.
func TypeName(mode fs.FileMode) string { return cmp.Or(typeNames[mode.Type()], "block") }

// Mode is the permissions with the special bits.
func Mode(info fs.FileInfo) uint32 {
	return uint32(info.Sys().(*syscall.Stat_t).Mode) & 0o7777
}

// Owner is whose it is.
func Owner(info fs.FileInfo) (uid, gid int) {
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), int(s.Gid)
}

// LinkCount is how many names it has.
func LinkCount(info fs.FileInfo) int64 {
	return int64(info.Sys().(*syscall.Stat_t).Nlink)
}

// ID identifies a file on this host for as long as it exists.
type ID struct{ device, number uint64 }

func (i ID) String() string { return fmt.Sprintf("%x:%x", i.device, i.number) }

// IDOf gives the ID of a file.
func IDOf(info fs.FileInfo) ID {
	s := info.Sys().(*syscall.Stat_t)
	return ID{uint64(s.Dev), s.Ino}
}

// Version tells a file from another that got its number when it was removed.
type Version struct {
	ID
	changed syscall.Timespec
}

// VersionOf gives the Version of a file.
func VersionOf(info fs.FileInfo) Version {
	return Version{IDOf(info), disk.ChangeTime(info.Sys().(*syscall.Stat_t))}
}

// Links are the names of files that have several, as far as there is room: those
// of others are files of their own in the copy.
type Links struct {
	names map[Version]string
	size  int
}

const maxLinkNames = 8 << 20 // bytes

// NewLinks are none yet.
func NewLinks() *Links { return &Links{names: map[Version]string{}} }

// Add notes the first name of a file.
func (l *Links) Add(info fs.FileInfo, name string) {
	if l.size += len(name) + 64; l.size <= maxLinkNames {
		l.names[VersionOf(info)] = name
	}
}

// First gives the name that was noted for a file.
func (l *Links) First(info fs.FileInfo) (string, bool) {
	name, ok := l.names[VersionOf(info)]
	return name, ok
}

// NewTempName is a name for what will be renamed.
func NewTempName() string {
	var random [8]byte
	_, _ = rand.Read(random[:])
	return ".hermes-exec-" + hex.EncodeToString(random[:]) + ".tmp"
}
