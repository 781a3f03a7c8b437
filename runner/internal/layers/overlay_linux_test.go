package layers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mountOverlay mounts lower directories, newest first, with an upper directory or without.
func mountOverlay(t *testing.T, at, upper, work string, lowers ...string) {
	t.Helper()
	options := "userxattr,lowerdir=" + strings.Join(lowers, ":")
	if upper != "" {
		options += ",upperdir=" + upper + ",workdir=" + work + ",volatile"
	}
	for _, dir := range []string{at, upper, work} {
		if dir != "" {
			must(t, os.MkdirAll(dir, 0o755))
		}
	}
	if err := syscall.Mount("overlay", at, "overlay", 0, options); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) {
			t.Skipf("mounts of overlays on %s: %v", filepath.Dir(at), err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) })
}

// changeImage does with a mounted image what tenants do.
func changeImage(t *testing.T, at string) {
	t.Helper()
	must(t, os.Remove(at+"/etc/removed"))
	must(t, os.RemoveAll(at+"/etc/gone"))
	must(t, os.RemoveAll(at+"/etc/replaced"))
	must(t, os.Mkdir(at+"/etc/replaced", 0o700))
	must(t, os.WriteFile(at+"/etc/replaced/new", []byte("new"), 0o644))
	must(t, os.Chmod(at+"/usr/program", 0o4755))
	must(t, os.Rename(at+"/usr/moved", at+"/etc/moved"))
	must(t, os.Remove(at+"/usr/file"))
	must(t, os.Mkdir(at+"/usr/file", 0o755))
	must(t, os.WriteFile(at+"/usr/file/inside", nil, 0o644))
	must(t, os.Link(at+"/etc/moved", at+"/usr/second name"))
	must(t, syscall.Setxattr(at+"/usr", "user.own", []byte("x"), 0))
}

func makeImage(t *testing.T, at string) {
	t.Helper()
	for _, dir := range []string{"/etc/gone/deep", "/etc/replaced/old", "/usr"} {
		must(t, os.MkdirAll(at+dir, 0o755))
	}
	for _, file := range []string{"/etc/removed", "/etc/kept", "/etc/gone/file", "/etc/replaced/old/file",
		"/usr/program", "/usr/moved", "/usr/file"} {
		must(t, os.WriteFile(at+file, []byte(file), 0o644))
	}
}

func TestCopyOfAnUpperIsTheSameLayer(t *testing.T) {
	dir := layerDir(t)
	makeImage(t, dir+"/image")
	mountOverlay(t, dir+"/slot", dir+"/upper", dir+"/work", dir+"/image")
	changeImage(t, dir+"/slot")
	want := describe(t, dir+"/slot")
	must(t, Copy(t.Context(), dir+"/upper", dir+"/copy", Bound{}))
	requireEqual(t, want, describe(t, dir+"/slot"))
	mountOverlay(t, dir+"/fork", dir+"/upper2", dir+"/work2", dir+"/copy", dir+"/image")
	must(t, os.Chmod(dir+"/fork", 0o755))
	must(t, os.Chtimes(dir+"/fork", timeOf(t, dir+"/slot"), timeOf(t, dir+"/slot")))
	requireEqual(t, want, describe(t, dir+"/fork"))
	requireEqual(t, describe(t, dir+"/upper"), describe(t, dir+"/copy"))
}

func timeOf(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.ModTime()
}
