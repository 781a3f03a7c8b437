package private

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// stranger is a user id that this user and root do not have.
const stranger = 54321

func mode(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWayThatOthersMayChangeIsRefused(t *testing.T) {
	top := t.TempDir()
	for name, c := range map[string]struct {
		mode    os.FileMode
		refused string
	}{
		"closed": {0o700, ""}, "passable": {0o755, ""}, "sticky": {0o777 | os.ModeSticky, ""},
		"group": {0o775, "others may write"}, "open": {0o777, "others may write"},
	} {
		way := filepath.Join(top, name)
		mode(t, way, 0o700)
		if err := os.Chown(way, -1, stranger); err != nil && c.mode == 0o775 {
			t.Logf("its group may be this user's alone: %v", err)
			continue
		}
		mode(t, way, c.mode)
		d, err := Open(filepath.Join(way, "a", "base"), 0o711, "slots")
		if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		for _, made := range []string{d.Path, filepath.Join(d.Path, "slots")} {
			if st, err := os.Stat(made); err != nil || st.Mode().Perm() != 0o711 {
				t.Error(name, made, st.Mode(), err)
			}
		}
		mode(t, way, 0o777)
		if err := d.Verify(); err == nil {
			t.Errorf("%s: it was opened to all, and nobody noticed", name)
		}
	}
}

func TestDirectoryOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to give a directory away")
	}
	way := mode(t, filepath.Join(t.TempDir(), "theirs"), 0o755)
	base := mode(t, filepath.Join(way, "base"), 0o700)
	for _, path := range []string{base, way} {
		if err := os.Chown(path, stranger, stranger); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(base, 0o700); err == nil || !strings.Contains(err.Error(), "belongs to another user (54321)") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestDirectoryThatWasOpenIsRefused(t *testing.T) {
	base := mode(t, filepath.Join(t.TempDir(), "base"), 0o777|os.ModeSticky)
	if _, err := Open(base, 0o700); err == nil || !strings.Contains(err.Error(), "may have put something there") {
		t.Error(err)
	}
}

func TestLinkIsNoDirectory(t *testing.T) {
	top := t.TempDir()
	mode(t, filepath.Join(top, "real"), 0o700)
	if err := os.Symlink("real", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	if d, err := Open(filepath.Join(top, "link"), 0o700); err == nil {
		t.Error(d.Path)
	}
}

func TestDirectoryThatWasExchangedIsNoticedAndNotRemoved(t *testing.T) {
	d, err := Open(filepath.Join(t.TempDir(), "base"), 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.Path, d.Path+"-away"); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(mode(t, d.Path, 0o700), "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(); err == nil || !strings.Contains(err.Error(), "moved or replaced") {
		t.Error(err)
	}
	if left := d.Remove(); len(left) != 1 {
		t.Error(left)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

func TestHiddenDirectoryIsClosed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no engine has directories here")
	}
	dir := mode(t, filepath.Join(t.TempDir(), "engine"), 0o777)
	if err := Hide(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	readOnlyNow := syscall.Mkdir(filepath.Join(dir, "x"), 0o700) == syscall.EROFS
	st, err := os.Stat(dir)
	if err != nil || !readOnlyNow && st.Mode().Perm() != 0o700 {
		t.Error(st.Mode(), err)
	}
	if err := Hide(dir); err != nil {
		t.Error(err)
	}
	if err := Hide(filepath.Join(dir, "nothing")); err != nil {
		t.Error(err)
	}
}
