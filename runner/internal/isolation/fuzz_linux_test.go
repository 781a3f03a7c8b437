package isolation

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/proc"
)

func FuzzMountTable(f *testing.F) {
	f.Add(`/a\040b\134`, "rw,nosuid,relatime")
	f.Add(`\`, "")
	f.Add(`\777\08`, ",,")
	f.Fuzz(func(t *testing.T, path, options string) {
		if out := proc.Unescape(path); len(out) > len(path) || !strings.Contains(path, `\`) && out != path {
			t.Fatalf("%q became %q", path, out)
		}
		_ = mountFlags(options)
	})
}

// The image's own passwd says who its users are.
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
