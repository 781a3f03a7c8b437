package layers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/wipe"
)

var removeTree = wipe.RemoveTree

func requireGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

func TestCopyEqualsItsSource(t *testing.T) {
	dir := layerDir(t)
	want := makeTree(t, dir+"/from")
	must(t, Copy(t.Context(), dir+"/from", dir+"/to", Bound{}))
	requireEqual(t, want, describe(t, dir+"/to"))
	requireEqual(t, want, describe(t, dir+"/from"))
	size, err := Measure(dir+"/from", Bound{})
	if err != nil || size.Entries != len(want)-1 {
		t.Errorf("%v %v, %d", size, err, len(want))
	}
	must(t, Copy(t.Context(), dir+"/to", dir+"/again", Bound(size)))
	requireEqual(t, want, describe(t, dir+"/again"))
}

func TestCopyKeepsAccessTimes(t *testing.T) {
	dir := layerDir(t)
	must(t, os.Mkdir(dir+"/from", 0o755))
	must(t, os.WriteFile(dir+"/from/file", []byte("x"), 0o644))
	for _, name := range []string{"/from/file", "/from"} {
		must(t, os.Chtimes(dir+name, time.Unix(5, 6), time.Unix(7, 8)))
	}
	must(t, Copy(t.Context(), dir+"/from", dir+"/to", Bound{}))
	for _, name := range []string{"/from", "/from/file", "/to", "/to/file"} {
		var st syscall.Stat_t
		if must(t, syscall.Lstat(dir+name, &st)); st.Atim != (syscall.Timespec{Sec: 5, Nsec: 6}) {
			t.Errorf("%s: %v", name, st.Atim)
		}
	}
}

func TestCopyRefusesAnExistingTarget(t *testing.T) {
	dir := layerDir(t)
	must(t, os.Mkdir(dir+"/from", 0o755))
	must(t, os.MkdirAll(dir+"/to/mine", 0o755))
	must(t, os.Symlink(dir+"/to", dir+"/link"))
	for _, to := range []string{"/to", "/link"} {
		if err := Copy(t.Context(), dir+"/from", dir+to, Bound{}); !errors.Is(err, fs.ErrExist) {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir + "/to/mine"); err != nil {
		t.Error(err)
	}
	if err := Copy(t.Context(), dir+"/link", dir+"/new", Bound{}); err == nil {
		t.Error("a link is followed")
	}
	requireGone(t, dir+"/new")
}

func TestBoundCountsNamesAndData(t *testing.T) {
	dir := layerDir(t)
	from := dir + "/from"
	must(t, os.MkdirAll(from+"/a/b", 0o755))
	must(t, os.WriteFile(from+"/a/file", make([]byte, 10_000), 0o644))
	must(t, os.Link(from+"/a/file", from+"/a/b/same"))
	makeSparse(t, from+"/sparse", 1<<40, 1<<39)
	want := Size{Entries: 5, Bytes: 10_000 + 4096}
	if size, err := Measure(from, Bound{}); err != nil || size != want {
		t.Errorf("%v %v", size, err)
	}
	for _, enough := range []bool{true, false} {
		bounds := []Bound{{Entries: 5}, {Bytes: want.Bytes}, Bound(want)}
		if !enough {
			bounds = []Bound{{Entries: 4}, {Bytes: want.Bytes - 1}, {Entries: 1, Bytes: 1 << 40}}
		}
		for _, bound := range bounds {
			_, err := Measure(from, bound)
			if enough != (err == nil) || !enough && !errors.Is(err, ErrTooLarge) {
				t.Errorf("measure %v: %v", bound, err)
			}
			err = Copy(t.Context(), from, dir+"/to", bound)
			if enough != (err == nil) || !enough && !errors.Is(err, ErrTooLarge) {
				t.Errorf("copy %v: %v", bound, err)
			}
			if !enough {
				requireGone(t, dir+"/to")
			}
			removeTree(dir + "/to")
		}
	}
}

func TestTooManyDirectoriesInOneFail(t *testing.T) {
	dir := layerDir(t)
	for i := range 30 {
		must(t, os.MkdirAll(fmt.Sprintf("%s/from/many/%d", dir, i), 0o755))
	}
	must(t, Copy(t.Context(), dir+"/from", dir+"/to", Bound{}))
	before := maxNameBytes
	defer func() { maxNameBytes = before }()
	maxNameBytes = 20 * nameSize
	_, measureErr := Measure(dir+"/from", Bound{})
	_, packErr := Pack(t.Context(), dir+"/from", nil, io.Discard)
	for _, err := range []error{measureErr, packErr, Copy(t.Context(), dir+"/from", dir+"/more", Bound{})} {
		var pathErr *fs.PathError
		if !errors.As(err, &pathErr) || pathErr.Err != errTooMany || !strings.HasPrefix(pathErr.Path, "many/") {
			t.Error(err)
		}
	}
	requireGone(t, dir+"/more")
}

func TestMeasureStopsAtTheBound(t *testing.T) {
	dir := layerDir(t)
	for i := range 300 {
		must(t, os.WriteFile(filepath.Join(dir, strings.Repeat("x", i%200+1)+string(rune('a'+i/200))), nil, 0o644))
	}
	if size, err := Measure(dir, Bound{Entries: 100}); !errors.Is(err, ErrTooLarge) || size.Entries != 101 {
		t.Errorf("%v %v", size, err)
	}
}

func TestCopyOfDeepTreeNeedsFewDescriptors(t *testing.T) {
	dir := layerDir(t)
	must(t, os.Mkdir(dir+"/from", 0o755))
	const levels = 1_000
	nest(t, dir+"/from", strings.Repeat("d", 200), levels)
	var most atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			fds, _ := os.ReadDir("/proc/self/fd")
			most.Store(max(most.Load(), int64(len(fds))))
			select {
			case <-done:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	}()
	must(t, Copy(t.Context(), dir+"/from", dir+"/to", Bound{}))
	close(done)
	<-ended
	if most.Load() > 2*maxOpen+30 {
		t.Errorf("%d descriptors", most.Load())
	}
	if size, err := Measure(dir+"/to", Bound{}); err != nil || size.Entries != 2*levels {
		t.Errorf("%v %v", size, err)
	}
}

func TestCopyReportsTheEntryOnce(t *testing.T) {
	dir := layerDir(t)
	must(t, os.Mkdir(dir+"/from", 0o755))
	nest(t, dir+"/from", strings.Repeat("d", 100), 100)
	deep := dir + "/from"
	for range 30 {
		deep += "/" + strings.Repeat("d", 100)
	}
	must(t, syscall.Mkfifo(deep+"/fifo", 0o600))
	_, err := Measure(dir+"/absent", Bound{})
	var failed *fs.PathError
	if !errors.As(err, &failed) || failed.Path != dir+"/absent" || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	must(t, Copy(t.Context(), dir+"/from", dir+"/to", Bound{}))
	if root() {
		must(t, syscall.Mknod(deep+"/device", syscall.S_IFCHR|0o666, 1<<8|3))
		err = Copy(t.Context(), dir+"/from", dir+"/device", Bound{})
		if !errors.As(err, &failed) || !errors.Is(err, syscall.EPERM) || len(failed.Path) > maxPath+10 ||
			!strings.HasSuffix(failed.Path, "/device") {
			t.Error(err)
		}
		requireGone(t, dir+"/device")
	}
}

func TestCanceledCopyLeavesNothing(t *testing.T) {
	dir := layerDir(t)
	must(t, os.Mkdir(dir+"/from", 0o755))
	nest(t, dir+"/from", "d", 1_000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Copy(ctx, dir+"/from", dir+"/to", Bound{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	requireGone(t, dir+"/to")
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Lstat(dir + "/to/d/d/d/file"); err == nil {
				cancel()
			}
			runtime.Gosched()
		}
	}()
	if err := Copy(ctx, dir+"/from", dir+"/to", Bound{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	cancel()
	requireGone(t, dir+"/to")
}

// makeSecret makes a directory that no copy may read, beside an empty one to copy.
func makeSecret(t *testing.T) (dir string) {
	t.Helper()
	dir = layerDir(t)
	for _, name := range []string{"/outside/sub", "/from"} {
		must(t, os.MkdirAll(dir+name, 0o755))
	}
	for _, name := range []string{"/outside/file", "/outside/sub/file"} {
		must(t, os.WriteFile(dir+name, []byte("secret"), 0o644))
	}
	return dir
}

// changing does something to the tree before the first entry is copied.
type changing struct {
	*copier
	do func()
}

func (c *changing) entry(dir int, name string) error {
	if c.do != nil {
		c.do()
		c.do = nil
	}
	return c.copier.entry(dir, name)
}

func TestCopyFollowsNoLinkThatReplacesADirectory(t *testing.T) {
	dir := makeSecret(t)
	must(t, os.Mkdir(dir+"/from/sub", 0o755))
	must(t, os.WriteFile(dir+"/from/first", nil, 0o644))
	must(t, os.Mkdir(dir+"/to", 0o700))
	c := newCopier(t.Context(), Bound{})
	must(t, c.to.start(dir+"/to"))
	defer c.to.close()
	w := walk{ctx: t.Context(), op: "copy"}
	err := w.run(dir+"/from", &changing{c, func() {
		must(t, os.Rename(dir+"/from/sub", dir+"/from/old"))
		must(t, os.Symlink(dir+"/outside", dir+"/from/sub"))
	}})
	var failed *fs.PathError
	if !errors.As(err, &failed) || failed.Path != "sub" || failed.Err != syscall.ENOTDIR {
		t.Error(err)
	}
	requireGone(t, dir+"/to/sub")
}

func TestCopyReadsNoFileThatReplacesAnother(t *testing.T) {
	for name, replace := range map[string]func(dir string) error{
		"link":      func(dir string) error { return os.Symlink(dir+"/outside/file", dir+"/from/file") },
		"file":      func(dir string) error { return os.Link(dir+"/outside/file", dir+"/from/file") },
		"FIFO":      func(dir string) error { return syscall.Mkfifo(dir+"/from/file", 0o600) },
		"directory": func(dir string) error { return os.Mkdir(dir+"/from/file", 0o700) },
	} {
		dir := makeSecret(t)
		must(t, os.WriteFile(dir+"/from/file", []byte("own"), 0o644))
		var seen syscall.Stat_t
		must(t, syscall.Lstat(dir+"/from/file", &seen))
		must(t, os.Rename(dir+"/from/file", dir+"/old"))
		must(t, replace(dir))
		from, err := os.Open(dir + "/from")
		must(t, err)
		to, err := os.Open(dir)
		must(t, err)
		err = newCopier(t.Context(), Bound{}).file(int(from.Fd()), "file", int(to.Fd()), &seen)
		if !errors.Is(err, syscall.ELOOP) && !errors.Is(err, errChanged) {
			t.Errorf("%s: %v", name, err)
		}
		requireGone(t, dir+"/file")
		_ = from.Close()
		_ = to.Close()
	}
}

func TestCopyLeavesNoTreeWhoseDirectoriesMove(t *testing.T) {
	dir := makeSecret(t)
	nest(t, dir+"/from", "d", 2*maxOpen)
	var c chain
	defer c.close()
	must(t, c.start(dir+"/from"))
	for range 2 * maxOpen {
		must(t, c.push("d"))
	}
	moved := dir + "/from" + strings.Repeat("/d", maxOpen/2)
	must(t, os.Rename(moved, dir+"/outside/d"))
	for level := 2 * maxOpen; ; level-- {
		d, err := c.pop()
		_ = syscall.Close(d.fd)
		if err == nil && level > maxOpen/2 {
			continue
		}
		if level != maxOpen/2 || !errors.Is(err, errChanged) {
			t.Errorf("level %d: %v", level, err)
		}
		return
	}
}

func TestCopyWithoutCloneOrRangeIsTheSame(t *testing.T) {
	dir := layerDir(t)
	want := makeTree(t, dir+"/from")
	must(t, os.Mkdir(dir+"/to", 0o700))
	c := newCopier(t.Context(), Bound{})
	c.noClone, c.noRange = true, true
	must(t, c.to.start(dir+"/to"))
	w := walk{ctx: t.Context(), op: "copy"}
	must(t, w.run(dir+"/from", c))
	c.store.close()
	requireEqual(t, want, describe(t, dir+"/to"))
}

func TestCopyToAFullDiskFailsAndLeavesNothing(t *testing.T) {
	dir := layerDir(t)
	must(t, os.MkdirAll(dir+"/from/sub", 0o755))
	must(t, os.WriteFile(dir+"/from/sub/file", bytes.Repeat([]byte("x"), 1<<20), 0o644))
	must(t, os.Mkdir(dir+"/disk", 0o755))
	for _, options := range []string{"size=512k", "nr_inodes=3"} {
		if err := syscall.Mount("layers", dir+"/disk", "tmpfs", 0, options); err != nil {
			t.Skipf("mounts: %v", err)
		}
		err := Copy(t.Context(), dir+"/from", dir+"/disk/to", Bound{})
		var failed *fs.PathError
		if !errors.As(err, &failed) || !errors.Is(err, syscall.ENOSPC) || failed.Path != "sub/file" {
			t.Errorf("%s: %v", options, err)
		}
		requireGone(t, dir+"/disk/to")
		archive := pack(t, dir+"/from")
		err = Unpack(t.Context(), bytes.NewReader(archive), dir+"/disk/to", Limits{})
		if !errors.As(err, &failed) || !errors.Is(err, syscall.ENOSPC) || failed.Path != "sub/file" {
			t.Errorf("%s: %v", options, err)
		}
		requireGone(t, dir+"/disk/to")
		must(t, syscall.Unmount(dir+"/disk", 0))
	}
}
