package program

import (
	"os"
	"strconv"
	"syscall"
	"testing"
)

func TestLookupLikeAShell(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run": 0o755, "data": 0o644} {
		if err := os.WriteFile(dir+"/"+name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=/no/such:" + dir}
	for name, want := range map[string]syscall.Errno{"run": 0, "data": syscall.EACCES, "sub": syscall.EACCES,
		"none": syscall.ENOENT, "./run": 0, "./none": syscall.ENOENT, "run/x": syscall.ENOENT} {
		if _, errno := Lookup(name, dir, env); errno != want {
			t.Errorf("%s: %v", name, errno)
		}
	}
	if path, errno := Lookup("run", dir, []string{"PATH=:/x"}); errno != 0 || path != "./run" {
		t.Error(path, strconv.Itoa(int(errno)))
	}
}
