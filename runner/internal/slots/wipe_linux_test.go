package slots

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/wipe"
)

func manyEntries(t *testing.T, dir string, n int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := syscall.Symlink("x", fmt.Sprintf("%s/%d", dir, i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWipeOfAHugeDirectoryNeedsLittleMemory(t *testing.T) {
	dir := t.TempDir() + "/huge"
	manyEntries(t, dir, 20_000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w := wipe.New(time.Minute)
	if !w.Wipe(dir) || len(w.Problems) > 0 {
		t.Fatal(w.Problems)
	}
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapSys) - int64(before.HeapSys); held > 16<<20 {
		t.Errorf("%d bytes for 20,000 entries", held)
	}
}

func TestWipeStopsAtItsTime(t *testing.T) {
	dir := t.TempDir() + "/huge"
	manyEntries(t, dir, 5_000)
	w := wipe.New(-time.Second)
	if w.Wipe(dir) || len(w.Problems) != 1 || !strings.Contains(w.Problems[0], "not removed within") {
		t.Error(w.Problems)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 4_000 {
		t.Errorf("%d entries are left, %v", len(entries), err)
	}
}

// holdWipers holds up whoever removes things from the trash, until letGo.
func (b *sandbox) holdWipers() (letGo func()) {
	for range wipe.MaxRemovals {
		b.trash.Turns <- struct{}{}
	}
	return func() {
		for range wipe.MaxRemovals {
			<-b.trash.Turns
		}
	}
}

func (b *sandbox) waitForEmptyTrash() {
	b.waitFor(func() bool {
		left, err := os.ReadDir(b.trash.Dir)
		return err == nil && len(left) == 0
	})
}

func TestResetsDoNotWaitForAHugeTree(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", PrivateRoot: true, Network: true})
	b.create(CreateParams{Slot: "b", PrivateRoot: true, Network: true})
	workspace := filepath.Join(b.base, "slots", "a", "workspace")
	b.sh("a", "mkdir huge")
	manyEntries(t, workspace+"/huge", 20_000)
	reset := func(slot string) {
		if r, err := b.Reset(context.Background(), slot); err != nil || !r.Clean {
			t.Fatalf("%s: %+v %v", slot, r, err)
		}
	}
	letGo := b.holdWipers()
	reset("a")
	if out := b.sh("a", "ls -A . $HOME $TMPDIR | grep -c huge; ls -A "+b.trash.Dir+" >/dev/null 2>&1 && echo seen || "+
		"true"); out != "0" {
		t.Errorf("the next tenant sees %q", out)
	}
	reset("b")
	letGo()
	reset("a") // waits for the trees that the first left
	b.waitForEmptyTrash()
}

// What still goes away when a reset has waited long enough harms nobody; what
// does not go away at all would fill the disk.
func TestResetsWaitForAHugeTreeOnlyAWhile(t *testing.T) {
	b := newSandbox(t, probed())
	b.trash.Timeout = 2 * time.Second
	b.create(CreateParams{Slot: "a", PrivateRoot: true, Network: true})
	b.sh("a", "mkdir huge")
	manyEntries(t, filepath.Join(b.base, "slots", "a", "workspace", "huge"), 20_000)
	letGo := b.holdWipers()
	reset := func() ResetResult {
		r, err := b.Reset(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := reset(); !r.Clean {
		t.Fatalf("%+v", r)
	}
	if r := reset(); r.Clean || !strings.Contains(strings.Join(r.Differences, " "), "no file that a tenant left was removed") {
		t.Errorf("although nothing was removed: %+v", r)
	}
	for range 2 {
		given := make(chan struct{})
		go func() {
			defer close(given)
			for range 15 { // a fifth of the entries
				time.Sleep(20 * time.Millisecond)
				<-b.trash.Turns
				b.trash.Turns <- struct{}{}
			}
		}()
		if r := reset(); !r.Clean {
			t.Errorf("although it goes away: %+v", r)
		}
		<-given
	}
	if left, err := os.ReadDir(b.trash.Dir); err != nil || len(left) == 0 {
		t.Errorf("the resets waited for all of it: %v", err)
	}
	letGo()
	b.waitForEmptyTrash()
}
