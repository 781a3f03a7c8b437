package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"hermes-exec/runner/internal/ipc"
)

// endsAfter is a context that ends after it was looked at a number of times.
type endsAfter struct {
	context.Context
	left atomic.Int64
}

func (e *endsAfter) Err() error {
	if e.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// runUntilStopped carries out a method with a context that ends after some looks.
func runUntilStopped(t *testing.T, dir, method string, looks int, params any) {
	t.Helper()
	raw, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	ctx := &endsAfter{Context: context.Background()}
	ctx.left.Store(int64(looks))
	_, err = Do(ctx, Env{Workdir: dir}, ipc.FileOp{Method: method, Params: raw}, nil)
	var e *ipc.Error
	if !errors.As(err, &e) || e.Kind != "canceled" {
		t.Errorf("%s after %d looks: %v", method, looks, err)
	}
	// A search has up to 16 files open, and each of its readers looks once more.
	if beyond := -ctx.left.Load(); beyond > 40 {
		t.Errorf("%s looked %d times more after the end", method, beyond)
	}
}

func manyFiles(t *testing.T, dir string) {
	t.Helper()
	for i := range 20 {
		for k := range 20 {
			write(t, fmt.Sprintf("%s/%02d/%02d", dir, i, k), "text\n", 0o644)
		}
	}
}

func count(t *testing.T, pattern string) int {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestCanceledWorkStops(t *testing.T) {
	dir := t.TempDir()
	manyFiles(t, dir+"/s")
	runUntilStopped(t, dir, "file.stat", 0, m{"path": "s"})
	runUntilStopped(t, dir, "file.list", 100, m{"path": "s", "recursive": true})
	runUntilStopped(t, dir, "file.glob", 100, m{"path": "s", "pattern": "**"})
	runUntilStopped(t, dir, "file.search", 100, m{"path": "s", "pattern": "", "target": "files"})
	runUntilStopped(t, dir, "file.search", 100, m{"path": "s", "pattern": "text"})
	runUntilStopped(t, dir, "file.copy", 100, m{"source": "s", "target": "t", "recursive": true})
	if n := count(t, dir+"/t/*/*"); n == 0 || n > 100 {
		t.Errorf("%d of 400 files were copied", n)
	}
	runUntilStopped(t, dir, "file.remove", 100, m{"path": "s", "recursive": true})
	if n := count(t, dir+"/s/*/*"); n == 400 || n < 300 {
		t.Errorf("%d of 400 files are left", n)
	}
}

func TestCanceledCopyOfAFileLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/big", strings.Repeat("x", 64<<20), 0o644)
	runUntilStopped(t, dir, "file.copy", 20, m{"source": "big", "target": "copy", "recursive": true})
	runUntilStopped(t, dir, "file.copy", 20, m{"source": "big", "target": "copy"})
	if n := count(t, dir+"/*") + count(t, dir+"/.*"); n != 1 {
		t.Errorf("%d files", n)
	}
}

func TestCanceledMoveIsNotHalfDone(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "files-test")
	if err != nil {
		t.Skip("no second file system here: " + err.Error())
	}
	defer os.RemoveAll(other)
	dir := t.TempDir()
	manyFiles(t, dir+"/s")
	if os.Rename(dir+"/s", other+"/s") == nil {
		t.Skip("the same file system")
	}
	runUntilStopped(t, dir, "file.move", 100, m{"source": "s", "target": other + "/s"})
	if n, made := count(t, dir+"/s/*/*"), count(t, other+"/*")+count(t, other+"/.*"); n != 400 || made != 0 {
		t.Errorf("%d of 400 files are left, %d entries in the target", n, made)
	}
}

func TestRemoveTree(t *testing.T) {
	dir := t.TempDir()
	deep := dir + "/deep"
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		write(t, fmt.Sprintf("%s/wide/%d", deep, i), "", 0o600)
	}
	manyFiles(t, deep+"/more/and/more")
	if err := os.Symlink("deep", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, dir, "file.remove", m{"path": "deep/more/..", "recursive": true}, "EINVAL")
	wantErrno(t, dir, "file.remove", m{"path": "deep/.", "recursive": true}, "EINVAL")
	if n := count(t, deep+"/*/*"); n != 3001 {
		t.Fatalf("%d entries are left after a refusal", n)
	}
	must(t, dir, "file.remove", m{"path": "link/wide", "recursive": true}, "")
	must(t, dir, "file.remove", m{"path": "deep//", "recursive": true}, "")
	if _, err := os.Lstat(deep); err == nil {
		t.Error("not removed")
	}
}

func TestRemoveTreeAgainstARacingLink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write(t, outside+"/keep", "", 0o644)
	if err := errors.Join(os.MkdirAll(dir+"/d/real", 0o755), os.Symlink(outside, dir+"/away")); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		write(t, fmt.Sprintf("%s/d/real/%d", dir, i), "", 0o600)
	}
	write(t, dir+"/d/zz/f", "", 0o600)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			_ = os.Rename(dir+"/d/real", dir+"/kept")
			_ = os.Rename(dir+"/away", dir+"/d/real")
			_ = os.Rename(dir+"/d/real", dir+"/away")
			_ = os.Rename(dir+"/kept", dir+"/d/real")
		}
	}()
	for range 20 {
		_, _, _ = do(t, dir, "file.remove", m{"path": "d", "recursive": true}, nil)
	}
	stop.Store(true)
	<-done
	if _, err := os.Stat(outside + "/keep"); err != nil {
		t.Error("removed through a link:", err)
	}
}
