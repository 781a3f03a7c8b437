package files

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestAFileThatIsWrittenInPlaceStaysAsItWasOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a small file system is mounted by root")
	}
	dir, spare := t.TempDir(), t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	old := strings.Repeat("old", 10_000)
	write(t, dir+"/file", old, 0o644)
	fill(t, spare+"/large", 1_000_000)
	fill(t, spare+"/fits", 100_000)
	large, err := os.Open(spare + "/large")
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	if _, err := rewrite(dir+"/file", nil, large, 1_000_000); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if content(t, dir+"/file") != old {
		t.Error("the old contents are gone")
	}
	fits, err := os.Open(spare + "/fits")
	if err != nil {
		t.Fatal(err)
	}
	defer fits.Close()
	if _, err := rewrite(dir+"/file", nil, fits, 100_000); err != nil || len(content(t, dir+"/file")) != 100_000 {
		t.Error(err)
	}
	if err := os.Link(dir+"/file", dir+"/other"); err != nil {
		t.Fatal(err)
	}
	raw, _, err := do(t, dir, "file.write", m{"path": "other"}, make([]byte, 1_000_000))
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%v %v", raw, err)
	}
	if text := content(t, dir+"/file"); text != strings.Repeat("x", 100_000) {
		t.Errorf("%d bytes", len(text))
	}
}

func fill(t *testing.T, path string, size int) {
	t.Helper()
	write(t, path, strings.Repeat("x", size), 0o644)
}

func TestAFileIsWrittenAsItComesWhereNothingElseCanBe(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/closed/file", "before", 0o666)
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o755, dir + "/closed/file": 0o666,
		dir + "/closed": 0o555} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(dir+"/closed", 0o755) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with the goroutine
		if os.Geteuid() == 0 {
			if err := syscall.Setfsuid(65534); err != nil {
				t.Error(err)
			}
		}
		old, err := os.Lstat(dir + "/closed/file")
		if err != nil {
			t.Error(err)
			return
		}
		if n, err := replace(dir+"/closed/file", old, nil, strings.NewReader("then"), dir+"/none"); n != 4 ||
			err != nil {
			t.Errorf("%d %v", n, err)
		}
	}()
	<-done
	if text := content(t, dir+"/closed/file"); text != "then" {
		t.Error(text)
	}
}
