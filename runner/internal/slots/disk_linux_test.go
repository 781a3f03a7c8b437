package slots

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/isolation"
)

// smallDisk is a directory with a file system of its own, of 64 MiB and 4000
// files, and what fills it as another program would.
func smallDisk(t testing.TB) (dir string, fill func(name string, bytes int)) {
	t.Helper()
	dir = passableDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,nr_inodes=4000,mode=0711"); err != nil {
		t.Skip("no tmpfs can be mounted: ", err)
	}
	t.Cleanup(func() {
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		_ = os.Remove(dir)
	})
	return dir, func(name string, bytes int) {
		// What does not fit is left out.
		_ = os.WriteFile(filepath.Join(dir, name), make([]byte, bytes), 0o600)
	}
}

func sandboxAt(t *testing.T, base string) *sandbox {
	t.Helper()
	m, err := NewManager(filepath.Join(base, "base"), probed(), os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	b := sandboxOf(t, m)
	t.Cleanup(func() { m.Close(context.Background()) })
	return b
}

func (b *sandbox) disk(slot string) diskspace.Facts {
	b.t.Helper()
	facts, err := b.Disk(context.Background(), slot, false, false)
	if err != nil {
		b.t.Fatal(err)
	}
	return facts
}

func TestFullDiskIsTheDoingOfWhoFilledIt(t *testing.T) {
	dir, fill := smallDisk(t)
	b := sandboxAt(t, dir)
	fill("others", 64<<20)
	if b.DiskHasRoom() {
		t.Error("before there is a slot a full disk is not seen")
	}
	if err := os.Remove(filepath.Join(dir, "others")); err != nil {
		t.Fatal(err)
	}
	for _, slot := range []string{"a", "b"} {
		b.create(CreateParams{Slot: slot, Network: true, PrivateRoot: true})
	}
	b.sh("a", "echo something > small")
	if facts := b.disk("a"); facts.NearlyFull || facts.ByOthers || !b.DiskHasRoom() {
		t.Errorf("%+v", facts)
	}
	fill("others", 64<<20)
	if facts := b.disk("a"); !facts.NearlyFull || !facts.ByOthers || b.DiskHasRoom() || !b.DiskNearlyFull("a") {
		t.Errorf("another program filled it: %+v", facts)
	}
	if err := os.Remove(filepath.Join(dir, "others")); err != nil {
		t.Fatal(err)
	}
	b.sh("a", "cat /dev/zero > large 2>/dev/null; true")
	if facts := b.disk("a"); !facts.NearlyFull || facts.ByOthers || facts.UseBytes < 60<<20 {
		t.Errorf("the slot filled it: %+v", facts)
	}
	if facts := b.disk("b"); !facts.NearlyFull || !facts.ByOthers {
		t.Errorf("its neighbour filled it: %+v", facts)
	}
	if result, err := b.Reset(context.Background(), "a"); err != nil || !result.Clean {
		t.Errorf("%+v %v", result, err)
	}
	if facts := b.disk("b"); facts.NearlyFull {
		t.Errorf("after the reset: %+v", facts)
	}
}

func TestRoomThatATenantLeavesIsNoneForTheNext(t *testing.T) {
	dir, fill := smallDisk(t)
	b := sandboxAt(t, dir)
	b.create(CreateParams{Slot: "a", Network: true, PrivateRoot: true})
	b.sh("a", "head -c 2000000 /dev/zero > work")
	fill("others", 64<<20)
	if !b.DiskNearlyFull("a") {
		t.Error("the disk is full")
	}
	if result, err := b.Reset(context.Background(), "a"); err != nil || !result.Clean {
		t.Errorf("%+v %v", result, err)
	}
	if b.DiskNearlyFull("a") || b.DiskHasRoom() {
		t.Error("there are 2 MB for the next slot")
	}
	b.sh("a", "cat /dev/zero > work 2>/dev/null; true")
	if facts := b.disk("a"); !facts.ByOthers {
		t.Errorf("a slot that began there: %+v", facts)
	}
	if err := os.Remove(filepath.Join(dir, "others")); err != nil {
		t.Fatal(err)
	}
	if !b.DiskHasRoom() {
		t.Error("there is room again")
	}
}

func TestRemovedFilesThatASlotHoldsOpenAreItsOwn(t *testing.T) {
	for _, level := range []string{isolation.None, isolation.Namespaces} {
		dir, _ := smallDisk(t)
		b := sandboxAt(t, dir)
		b.create(CreateParams{Slot: "a", Level: level, Network: true, PrivateRoot: true})
		b.sh("a", "(exec 3>large; rm large; cat /dev/zero >&3 2>/dev/null; sleep 100) >/dev/null 2>&1 </dev/null &")
		for end := time.Now().Add(time.Minute); !b.DiskNearlyFull("a") && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		if facts := b.disk("a"); !facts.NearlyFull || facts.ByOthers || facts.UseBytes < 60<<20 {
			t.Errorf("%s: %+v", level, facts)
		}
	}
}

func TestFilesWithoutRoomForOthersCountToo(t *testing.T) {
	dir, _ := smallDisk(t)
	b := sandboxAt(t, dir)
	b.create(CreateParams{Slot: "a", Level: isolation.None, Network: true, PrivateRoot: true})
	b.create(CreateParams{Slot: "b", Level: isolation.None, Network: true, PrivateRoot: true})
	b.sh("b", "i=0; while true > $i; do i=$((i + 1)); done 2>/dev/null; true")
	if facts := b.disk("a"); !facts.NearlyFull || !facts.ByOthers || facts.FreeBytes < 32<<20 {
		t.Errorf("%+v", facts)
	}
	if facts := b.disk("b"); !facts.NearlyFull || facts.ByOthers {
		t.Errorf("%+v", facts)
	}
}

func BenchmarkDiskRoom(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, ok := diskspace.At(dir, false); !ok {
			b.Fatal("no room is told")
		}
	}
}
