package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A sandbox within a sandbox has a root that is an overlay over an overlay already.
func TestAThirdOverlayIsOneTooMany(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts take root")
	}
	base := t.TempDir()
	if err := syscall.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	dir := func(name string) string {
		at := filepath.Join(base, name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		return at
	}
	v := View{Layer: dir("layer")}
	lower := dir("lower")
	for n := range 2 {
		at := dir("at" + string(rune('0'+n)))
		if err := v.mountLayer(n, lower, at); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
		lower = at
	}
	err := v.mountLayer(2, lower, dir("at2"))
	if err == nil {
		_ = syscall.Unmount(dir("at2"), syscall.MNT_DETACH)
		t.Fatal("three overlays, one over the other")
	}
	if !errors.Is(err, syscall.EINVAL) { // which isolation explains
		t.Error(err)
	}
}
