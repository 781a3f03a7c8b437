package slots

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"hermes-exec/runner/internal/isolation"
)

// exchange swaps two names, as a tenant does in a folder of its own.
func exchange(one, two string) {
	const sysRenameat2, swap = 316, 2
	a, _ := syscall.BytePtrFromString(one)
	b, _ := syscall.BytePtrFromString(two)
	cwd := atCwd
	_, _, _ = syscall.Syscall6(sysRenameat2, uintptr(cwd), uintptr(unsafe.Pointer(a)), uintptr(cwd),
		uintptr(unsafe.Pointer(b)), swap, 0)
}

func sharedBox(t *testing.T) (*box, string) {
	t.Helper()
	needs(t, isolation.UID)
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	b := newBox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.UID, PrivateRoot: true, Network: true})
	folder, err := os.MkdirTemp("/tmp", "shared")
	if err == nil {
		err = os.Chmod(folder, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return b, folder
}

// A neighbour swaps the folder in which a slot has left something with a link
// to where something of that name is that is not the slot's.
func TestAResetStaysInTheFoldersThatItSearches(t *testing.T) {
	b, folder := sharedBox(t)
	facts, err := b.Facts("a")
	if err != nil {
		t.Fatal(err)
	}
	victim := t.TempDir()
	for round := range 20 {
		if err := os.MkdirAll(victim+"/kept/deep", 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			dir, link := fmt.Sprintf("%s/d%d", folder, i), fmt.Sprintf("%s/l%d", folder, i)
			_ = os.RemoveAll(dir)
			_ = os.RemoveAll(link)
			_ = os.MkdirAll(dir+"/kept", 0o777)
			_ = os.Chmod(dir, 0o777)
			_ = os.Chown(dir+"/kept", facts.UID, facts.UID)
			_ = os.Symlink(victim, link)
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i = (i + 1) % 50 {
				select {
				case <-stop:
					return
				default:
					exchange(fmt.Sprintf("%s/d%d", folder, i), fmt.Sprintf("%s/l%d", folder, i))
				}
			}
		}()
		r, err := b.Reset(context.Background(), "a")
		close(stop)
		<-done
		if err != nil || !r.Clean {
			t.Fatalf("%+v %v", r, err)
		}
		if _, err := os.Stat(victim + "/kept/deep"); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

func TestAResetDoesNotWaitForWhatANeighbourLeaves(t *testing.T) {
	b, folder := sharedBox(t)
	if err := syscall.Mkfifo(folder+"/fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	deep := folder
	for range 1500 {
		deep = filepath.Join(deep, "a")
		if len(deep) > 4000 || os.Mkdir(deep, 0o777) != nil {
			break
		}
		_ = os.Chmod(deep, 0o777)
	}
	began := time.Now()
	if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
		t.Fatalf("%+v %v", r, err)
	}
	if took := time.Since(began); took > searchTime+10*time.Second {
		t.Errorf("a reset took %v", took)
	}
}
