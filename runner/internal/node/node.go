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

// TypeName returns the protocol's name of a file type.
func TypeName(mode fs.FileMode) string { return cmp.Or(typeNames[mode.Type()], "block") }

// Mode returns the permissions with the special bits.
func Mode(info fs.FileInfo) uint32 {
	return uint32(info.Sys().(*syscall.Stat_t).Mode) & 0o7777
}

// Owner returns the owner and the group.
func Owner(info fs.FileInfo) (uid, gid int) {
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), int(s.Gid)
}

// LinkCount returns the number of hard links.
func LinkCount(info fs.FileInfo) int64 {
	return int64(info.Sys().(*syscall.Stat_t).Nlink)
}

// ID identifies a file on this host for as long as it exists.
type ID struct{ device, number uint64 }

func (i ID) String() string { return fmt.Sprintf("%x:%x", i.device, i.number) }

// IDOf returns the ID of a file.
func IDOf(info fs.FileInfo) ID {
	s := info.Sys().(*syscall.Stat_t)
	return ID{uint64(s.Dev), s.Ino}
}

// Version distinguishes a file from a later file with the same number.
type Version struct {
	ID
	changed syscall.Timespec
}

// VersionOf returns the Version of a file.
func VersionOf(info fs.FileInfo) Version {
	return Version{IDOf(info), disk.ChangeTime(info.Sys().(*syscall.Stat_t))}
}

// Links holds the first names of files with several names, up to maxLinkNames. Further links become
// files of their own in the copy.
type Links struct {
	names map[Version]string
	size  int
}

const maxLinkNames = 8 << 20 // bytes

// NewLinks returns empty Links.
func NewLinks() *Links { return &Links{names: map[Version]string{}} }

// Add records the first name of a file.
func (l *Links) Add(info fs.FileInfo, name string) {
	if l.size += len(name) + 64; l.size <= maxLinkNames {
		l.names[VersionOf(info)] = name
	}
}

// First returns the recorded name of a file.
func (l *Links) First(info fs.FileInfo) (string, bool) {
	name, ok := l.names[VersionOf(info)]
	return name, ok
}

// NewTempName returns a random name for a file that will be renamed.
func NewTempName() string {
	var random [8]byte
	_, _ = rand.Read(random[:])
	return ".hermes-exec-" + hex.EncodeToString(random[:]) + ".tmp"
}
