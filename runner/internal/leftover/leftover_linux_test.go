package leftover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/wipe"
)

// nest makes directories below dir, one in the other. It changes the directory
// by the system call: os.Chdir asks for the whole path each time.
func nest(t *testing.T, dir, name string, levels int) {
	t.Helper()
	t.Chdir(dir)
	for range levels {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Chdir(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Chdir("/"); err != nil {
		t.Fatal(err)
	}
}

func levels(t *testing.T, dir, name string) (found int) {
	t.Helper()
	t.Chdir(dir)
	for syscall.Chdir(name) == nil {
		found++
	}
	_ = syscall.Chdir("/")
	return found
}

func TestRemoveTakesAnyDepth(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "left")
	if err := os.MkdirAll(filepath.Join(dir, "shallow", "more"), 0o755); err != nil {
		t.Fatal(err)
	}
	nest(t, dir, "d", 3_000)
	nest(t, dir, strings.Repeat("n", 255), 600)
	if problems := Remove(dir, dir+"-is-not-there"); len(problems) > 0 {
		t.Fatal(problems)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Fatal("the directory is still there:", err)
	}
}

func TestFlattenLeavesWhatEnginesCanRemove(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"kept/a/b", "deep/beside"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for at := range 3 {
		if err := os.WriteFile(filepath.Join(dir, "kept/a", fmt.Sprint(at)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	nest(t, filepath.Join(dir, "deep"), "d", 2_000)
	nest(t, filepath.Join(dir, "kept"), "just", MaxDepth-1)
	if problems := Flatten(dir, time.Now(), time.Minute); len(problems) > 0 {
		t.Fatal(problems)
	}
	if found := levels(t, filepath.Join(dir, "deep"), "d"); found != MaxDepth-1 {
		t.Errorf("%d levels are left of a deep tree", found)
	}
	if found := levels(t, filepath.Join(dir, "kept"), "just"); found != MaxDepth-1 {
		t.Errorf("%d levels are left of a tree that was not too deep", found)
	}
	for _, name := range []string{"kept/a/b", "kept/a/0", "kept/a/2", "deep/beside"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if problems := wipe.RemoveTree(dir); len(problems) > 0 {
		t.Error(problems)
	}
}
