package room

import (
	"syscall"
	"testing"
)

// CephFS tells how many objects it has, and -1 for those that it could still
// have; others count no files at all.
func TestFilesThatAreNotBoundedAreNotFull(t *testing.T) {
	for _, files := range []struct{ most, free uint64 }{{5_000_000, ^uint64(0)}, {0, 0}} {
		s := syscall.Statfs_t{Blocks: 1 << 30, Bfree: 1 << 29, Bavail: 1 << 29, Files: files.most, Ffree: files.free}
		s.Bsize, s.Frsize = 4096, 4096
		if room := measured(&s, false); room.NearlyFull() {
			t.Errorf("%+v: %+v", files, room)
		}
	}
	s := syscall.Statfs_t{Blocks: 1 << 30, Bfree: 1 << 29, Bavail: 1 << 29, Files: 5_000_000, Ffree: 10}
	s.Bsize, s.Frsize = 4096, 4096
	if room := measured(&s, false); !room.NearlyFull() {
		t.Errorf("%+v", room)
	}
}
