package accounts

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestLookupUser(t *testing.T) {
	for name, want := range map[string]User{
		"":           {Name: "root", UID: 0, GID: 0},
		"root":       {Name: "root", UID: 0, GID: 0},
		"0":          {Name: "root", UID: 0, GID: 0},
		"nobody":     {Name: "nobody", UID: 65534, GID: 65534},
		"4242":       {Name: "4242", UID: 4242, GID: 0},
		"4242:77":    {Name: "4242", UID: 4242, GID: 77},
		"nobody:tty": {Name: "nobody", UID: 65534, GID: 5},
	} {
		got, err := LookupUser(name)
		if err != nil || got.Name != want.Name || got.UID != want.UID || got.GID != want.GID {
			t.Errorf("%q: %+v %v", name, got, err)
		}
	}
	for _, name := range []string{"no-such-user", "-1", "4294967295", "root:no-such-group", ":", "99999999999"} {
		if got, err := LookupUser(name); err == nil && name != ":" {
			t.Errorf("%q: %+v", name, got)
		}
	}
}

// The image's own passwd lists its users.
func FuzzNames(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\nu:x:1000:1000::/home/u:\n"), "u")
	f.Add([]byte("::::::\nx:x:-1:99999999999:a\n"), "x:y")
	f.Fuzz(func(t *testing.T, passwd []byte, name string) {
		for _, fields := range parseEntries(passwd, 7) {
			if len(fields) < 7 {
				t.Fatalf("%q", fields)
			}
			_, _ = id(fields[2])
		}
		_, _ = id(name)
	})
}

func TestAccountsThatAreNoFileOrWithoutEndAreNotWaitedFor(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "passwd")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", "/nowhere"} {
		if found := entries(path, 1); found != nil {
			t.Fatalf("%s: %q", path, found)
		}
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, []byte("u:x:7:7::/:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 1<<40); err != nil {
		t.Fatal(err)
	}
	if found := entries(large, 7); len(found) != 1 || found[0][0] != "u" {
		t.Fatalf("%d entries", len(found))
	}
}
