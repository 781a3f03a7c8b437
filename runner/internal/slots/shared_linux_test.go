package slots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"hermes-exec/runner/internal/isolation"
)

// exchange swaps two names, as a tenant does in a directory of its own.
func exchange(one, two string) {
	const sysRenameat2, swap = 316, 2
	a, _ := syscall.BytePtrFromString(one)
	b, _ := syscall.BytePtrFromString(two)
	cwd := -100
	_, _, _ = syscall.Syscall6(sysRenameat2, uintptr(cwd), uintptr(unsafe.Pointer(a)), uintptr(cwd),
		uintptr(unsafe.Pointer(b)), swap, 0)
}

func (b *sandbox) facts(slot string) SlotFacts {
	facts, err := b.Facts(slot)
	if err != nil {
		b.t.Fatal(err)
	}
	return facts
}

func sharedSandbox(t *testing.T) (*sandbox, string) {
	t.Helper()
	needs(t, isolation.UID)
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.UID, PrivateRoot: true, Network: true})
	directory, err := os.MkdirTemp("/tmp", "shared")
	if err == nil {
		err = os.Chmod(directory, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return b, directory
}

// Commands have a group of their own only where a slot shares its user with others.
func TestCommandsHaveAGroupOnlyInSlotsThatShareAUser(t *testing.T) {
	needs(t, isolation.UID)
	if !probed().Setgroups {
		t.Skip("takes root")
	}
	for _, c := range []struct {
		params CreateParams
		group  bool
	}{
		{CreateParams{Level: isolation.UID, PrivateRoot: true}, false},
		{CreateParams{Level: isolation.UID}, false},
		{CreateParams{Level: isolation.None, PrivateRoot: true}, false},
		{CreateParams{Level: isolation.None}, true},
		{CreateParams{Level: isolation.Exclusive}, false},
	} {
		b := newSandbox(t, probed())
		s := level{m: b.Manager, id: "a"}
		s.setup.Level, s.m.facts.Switch = c.params.Level, true
		if err := s.chooseUser(c.params); err != nil {
			t.Fatal(err)
		}
		if got := s.setup.Track.Count > 0; got != c.group {
			t.Errorf("%s, private root %v: a group %v", c.params.Level, c.params.PrivateRoot, got)
		}
	}
}

// A neighbour swaps the directory in which a slot has left something with a link
// to where something of that name is that is not the slot's.
func TestAResetStaysInTheDirectoriesThatItSearches(t *testing.T) {
	b, directory := sharedSandbox(t)
	victim := t.TempDir()
	for round := range 20 {
		facts := b.facts("a")
		if err := os.MkdirAll(victim+"/kept/deep", 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			dir, link := fmt.Sprintf("%s/d%d", directory, i), fmt.Sprintf("%s/l%d", directory, i)
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
					exchange(fmt.Sprintf("%s/d%d", directory, i), fmt.Sprintf("%s/l%d", directory, i))
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

// Directories of two slots in a world-writable directory are swapped in a loop while one slot is
// reset: the directory of the other is not emptied in its place.
func TestAResetCannotBeLedToANeighboursDirectory(t *testing.T) {
	b, directory := sharedSandbox(t)
	b.create(CreateParams{Slot: "c", Level: isolation.UID, PrivateRoot: true, Network: true})
	one, two := directory+"/one", directory+"/two"
	b.sh("c", "umask 022; mkdir "+two+"; echo kept >"+two+"/file")
	for round := range 20 {
		b.sh("a", "umask 0; mkdir "+one+"; cd "+one+"; for i in 1 2 3 4 5 6 7 8; do mkdir d$i; echo >d$i/file; done")
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					exchange(one, two)
				}
			}
		}()
		r, err := b.Reset(context.Background(), "a")
		close(stop)
		<-done
		if err != nil || !r.Clean {
			t.Fatalf("%+v %v", r, err)
		}
		for _, dir := range []string{one, two} {
			if st, err := os.Stat(dir); err == nil && int(st.Sys().(*syscall.Stat_t).Uid) != b.facts("c").UID {
				if err := os.RemoveAll(dir); err != nil { // for the next round
					t.Fatal(err)
				}
			}
		}
		if _, err := os.Stat(one + "/file"); err == nil {
			exchange(one, two)
			_ = os.Rename(one, two)
		}
		if out := b.sh("c", "cat "+two+"/file"); out != "kept" {
			t.Fatalf("round %d: %q", round, out)
		}
	}
}

// Files that a holder leaves out of the reset's reach do not belong to the next holder.
func TestTheNextHolderCannotReadWhatAResetDidNotFind(t *testing.T) {
	b, directory := sharedSandbox(t)
	b.create(CreateParams{Slot: "c", Level: isolation.UID, PrivateRoot: true, Network: true})
	b.sh("c", "umask 0; cd "+directory+"; for i in $(seq 40); do mkdir d; cd d; done")
	deepest := directory + strings.Repeat("/d", 40)
	b.sh("a", "umask 077; echo secret >"+deepest+"/file")
	before := b.facts("a").UID
	r, err := b.Reset(context.Background(), "a")
	if err != nil || !r.Clean || r.UID == before || r.UID != b.facts("a").UID {
		t.Fatalf("%+v %v", r, err)
	}
	if out := b.sh("a", "cat "+deepest+"/file 2>/dev/null; id -u; stat -c %u . $HOME | sort -u"); out !=
		fmt.Sprintf("%d\n%d", r.UID, r.UID) {
		t.Errorf("the next holder, %d, sees %q", r.UID, out)
	}
	// It goes with the directories that it lies in.
	if r, err := b.Reset(context.Background(), "c"); err != nil || !r.Clean {
		t.Fatalf("%+v %v", r, err)
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}

// A holder's directory in which a neighbour has files of its own stays until
// these are gone, with everything in it that is the neighbour's.
func TestAResetKeepsWhatANeighbourHasInTheSlotsDirectories(t *testing.T) {
	b, directory := sharedSandbox(t)
	b.create(CreateParams{Slot: "c", Level: isolation.UID, PrivateRoot: true, Network: true})
	b.sh("a", "umask 0; mkdir -p "+directory+"/open/more; echo >"+directory+"/open/file")
	b.sh("c", "umask 077; mkdir "+directory+"/open/more/kept; echo kept >"+directory+"/open/more/kept/file; "+
		"echo kept >"+directory+"/open/theirs; echo kept >"+directory+"/open/more/theirs")
	if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
		t.Fatalf("%+v %v", r, err)
	}
	if out := b.sh("c", "cat "+directory+"/open/more/kept/file; cd "+directory+"/open; ls . more; cat theirs"); out !=
		"kept\n.:\nmore\ntheirs\n\nmore:\nkept\ntheirs\nkept" {
		t.Errorf("%q", out)
	}
	if r, err := b.Reset(context.Background(), "c"); err != nil || !r.Clean {
		t.Fatalf("%+v %v", r, err)
	}
	b.waitFor(func() bool {
		left, err := os.ReadDir(directory)
		return err == nil && len(left) == 0
	})
}

// Of a reset's work that would grow with what neighbours have, the rest is done
// afterwards.
func TestWhatLiesBehindANeighboursDirectoriesGoesAfterAReset(t *testing.T) {
	b, _ := sharedSandbox(t)
	directory, err := os.MkdirTemp("/dev/shm", "many")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	_ = os.Chmod(directory, 0o777)
	owner := b.facts("a").UID + 1 // nobody
	for i := range 30_000 {
		dir := fmt.Sprintf("%s/%d", directory, i)
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		_ = os.Chmod(dir, 0o777)
		_ = os.Chown(dir, owner, owner)
	}
	b.sh("a", "echo >/tmp/shared-mine; echo >"+directory+"/29999/file")
	if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
		t.Fatalf("%+v %v", r, err)
	}
	b.waitFor(func() bool {
		_, err := os.Stat(directory + "/29999/file")
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestAResetDoesNotWaitForWhatANeighbourLeaves(t *testing.T) {
	b, directory := sharedSandbox(t)
	if err := syscall.Mkfifo(directory+"/fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	deep := directory
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
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a reset took %v", took)
	}
}
