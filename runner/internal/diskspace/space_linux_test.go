package diskspace

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/wipe"
)

// CephFS reports how many objects it has, and -1 for free ones; other file systems do not count
// files at all.
func TestFilesThatAreNotBoundedAreNotFull(t *testing.T) {
	for _, files := range []struct{ most, free uint64 }{{5_000_000, ^uint64(0)}, {0, 0}} {
		s := syscall.Statfs_t{Blocks: 1 << 30, Bfree: 1 << 29, Bavail: 1 << 29, Files: files.most, Ffree: files.free}
		s.Bsize, s.Frsize = 4096, 4096
		if room := newSpace(&s, false); room.NearlyFull() {
			t.Errorf("%+v: %+v", files, room)
		}
	}
	s := syscall.Statfs_t{Blocks: 1 << 30, Bfree: 1 << 29, Bavail: 1 << 29, Files: 5_000_000, Ffree: 10}
	s.Bsize, s.Frsize = 4096, 4096
	if room := newSpace(&s, false); !room.NearlyFull() {
		t.Errorf("%+v", room)
	}
}

func TestATreeOfAnyDepthIsNotMeasuredWhole(t *testing.T) {
	top := t.TempDir()
	name := strings.Repeat("d", 250)
	dir, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := dir.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := dir.OpenRoot(name)
		if err != nil {
			t.Fatal(err)
		}
		dir.Close()
		dir = below
	}
	dir.Close()
	defer wipe.RemoveTree(filepath.Join(top, name))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var use Usage
	if err := use.Measure(top, time.Time{}, time.Now().Add(time.Minute)); !errors.Is(err, errTooDeep) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("%d MiB were allocated", took>>20)
	}
}

func TestMeasureCountsEachFileOnce(t *testing.T) {
	top := t.TempDir()
	for _, err := range []error{
		os.WriteFile(top+"/a", make([]byte, 1<<20), 0o600), os.Link(top+"/a", top+"/b"), os.Symlink("/", top+"/link"),
		os.Mkdir(top+"/c", 0o700), os.WriteFile(top+"/c/d", make([]byte, 1<<20), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var use Usage
	if err := use.Measure(top, time.Time{}, time.Now().Add(time.Minute)); err != nil || use.Files != 6 ||
		use.Bytes < 2<<20 || use.Bytes > 2<<20+100<<10 {
		t.Errorf("%+v %v", use, err)
	}
	use = Usage{}
	if err := use.Measure(top, time.Now().Add(time.Hour), time.Now().Add(time.Minute)); err != nil || use.Files != 0 {
		t.Errorf("%+v %v", use, err)
	}
}
