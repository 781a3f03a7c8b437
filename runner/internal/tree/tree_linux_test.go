package tree

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// nest makes directories in one another, each with the same name and a file.
func nest(t *testing.T, dir, name string, levels int) {
	t.Helper()
	fd, err := syscall.Open(dir, openFlags, 0)
	for range levels {
		var next int
		if err == nil {
			err = syscall.Mkdirat(fd, name, 0o755)
		}
		if err == nil {
			next, err = syscall.Openat(fd, name, openFlags, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Close(fd)
		fd = next
	}
	_ = syscall.Close(fd)
}

func openDirectory(t *testing.T, path string) int {
	t.Helper()
	fd, err := syscall.Open(path, openFlags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}

func TestARemoverNeedsLittleMemoryHoweverDeepATreeIs(t *testing.T) {
	parent := t.TempDir()
	if err := os.Mkdir(parent+"/top", 0o755); err != nil {
		t.Fatal(err)
	}
	nest(t, parent+"/top", strings.Repeat("d", 255), 3_000)
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	steps, most, open := 0, uint64(0), 0
	r := Remover{
		Step: func() error {
			if steps++; steps%1000 == 0 {
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
				fds, _ := os.ReadDir("/proc/self/fd")
				open = max(open, len(fds))
			}
			return nil
		},
		Fail: func(path string, err error) { t.Errorf("%s: %v", path, err) },
	}
	if !r.Remove(openDirectory(t, parent), "top") {
		t.Error("it is not removed")
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
	if grown := int64(most) - int64(before.HeapAlloc); grown > 8<<20 || open > MaxOpen+20 {
		t.Errorf("%d bytes, %d descriptors", grown, open)
	}
}

func TestARemoverReportsWhatStaysAndGoesOn(t *testing.T) {
	parent := t.TempDir()
	for _, dir := range []string{"top/a/b", "top/c/d"} {
		if err := os.MkdirAll(filepath.Join(parent, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var failed []string
	refused := errors.New("refused")
	r := Remover{
		Enter: func(dir int) error {
			if name, _ := os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(dir))); strings.HasSuffix(name, "/c") {
				return refused
			}
			return nil
		},
		Fail: func(path string, err error) { failed = append(failed, path+": "+err.Error()) },
	}
	if r.Remove(openDirectory(t, parent), "top") {
		t.Error("it says that all is gone")
	}
	if _, err := os.Stat(parent + "/top/a"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what may be removed is there: %v", err)
	}
	if _, err := os.Stat(parent + "/top/c/d"); err != nil || len(failed) == 0 || failed[0] != "top/c: refused" {
		t.Errorf("%v %q", err, failed)
	}
}

// asNobody runs do on a thread that has the file system rights of nobody.
func asNobody(do func()) {
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0)
		do()
	}()
	done.Wait()
}

func TestARemoverOpensUpWhatItsUserOwnsOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	parent, err := os.MkdirTemp("/tmp", "tree")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	_ = os.Chmod(parent, 0o777)
	theirs := parent + "/top/closed/theirs"
	asNobody(func() {
		_ = os.MkdirAll(parent+"/top/closed/own", 0o755)
		nest(t, parent+"/top/closed/own", "deep", 2*MaxOpen)
		_ = os.WriteFile(parent+"/top/closed/own/file", nil, 0o600)
		_ = os.Chmod(parent+"/top/closed/own", 0)
	})
	if err = os.MkdirAll(theirs, 0o700); err == nil {
		err = os.WriteFile(theirs+"/file", nil, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(parent+"/top/closed", 0)
	dir := openDirectory(t, parent)
	remove := func(force bool) (gone bool) {
		asNobody(func() { r := Remover{Force: force}; gone = r.Remove(dir, "top") })
		return gone
	}
	if remove(false) || remove(true) {
		t.Error("another user's directory is gone")
	}
	left, _ := os.ReadDir(parent + "/top/closed")
	if _, err := os.Stat(theirs + "/file"); err != nil || len(left) != 1 {
		t.Errorf("%v %v", err, left)
	}
	_ = os.RemoveAll(theirs)
	if !remove(true) {
		t.Error("its own directories are not gone")
	}
}

func TestADirectoryThatItselfCannotBeRemovedIsEmptied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to be another user")
	}
	const other = 54321
	parent := t.TempDir()
	for dir := parent; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755)
	}
	full := filepath.Join(parent, "full")
	for _, dir := range []string{full, full + "/below"} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, other, other)); err != nil {
			t.Fatal(err)
		}
	}
	dir := openDirectory(t, parent)
	var failed error
	done := make(chan bool)
	go func() {
		runtime.LockOSThread() // it ends with this goroutine
		_ = syscall.Setfsuid(other)
		r := Remover{Force: true, Fail: func(_ string, err error) { failed = err }}
		done <- r.Remove(dir, "full")
	}()
	if <-done || !errors.Is(failed, syscall.EACCES) {
		t.Error("it is gone", failed)
	}
	if entries, err := os.ReadDir(full); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
}

// Somebody else has an open descriptor of a directory that its owner had opened
// to all.
func TestADirectoryIsShutToOthersBeforeItIsEmptied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	parent := t.TempDir()
	for _, dir := range []string{"/top", "/top/below"} {
		err := errors.Join(os.Mkdir(parent+dir, 0o700), os.Chmod(parent+dir, 0o777), os.Chown(parent+dir, 65534, 65534),
			os.WriteFile(parent+dir+"/file", nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	held := openDirectory(t, parent+"/top")
	var made []error // by one try before each entry
	r := Remover{
		Shut: true,
		Step: func() error {
			asNobody(func() { made = append(made, syscall.Mkdirat(held, strconv.Itoa(len(made)), 0o777)) })
			return nil
		},
		Fail: func(path string, err error) { t.Errorf("%s: %v", path, err) },
	}
	if !r.Remove(openDirectory(t, parent), "top") || len(made) < 4 || made[0] != nil {
		t.Error("it is not removed", made)
	}
	for _, err := range made[1:] {
		if err != syscall.EACCES {
			t.Error("an entry after it was shut:", err)
		}
	}
}

func TestADirectoryIsNotReadWithoutEnd(t *testing.T) {
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	n := 0
	exchange := func(name string) (removed, more bool) {
		n++
		err := errors.Join(os.Remove(filepath.Join(path, name)), os.WriteFile(path+"/new-"+strconv.Itoa(n), nil, 0o600))
		return err == nil, n < 50_000
	}
	if err := os.WriteFile(path+"/first", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := EachName(dir, exchange); err != nil || n >= 50_000 {
		t.Error(n, err)
	}
}
