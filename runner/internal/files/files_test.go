package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/node"
)

func do(t *testing.T, dir, method string, params any, inline []byte) (map[string]any, ipc.FileResult, error) {
	t.Helper()
	raw, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Do(context.Background(), Env{Workdir: dir},
		ipc.FileOp{Method: method, Params: raw, Inline: inline, Small: method == "file.read"}, nil)
	var out map[string]any
	if err == nil && len(r.Result) > 0 {
		if err := json.Unmarshal(r.Result, &out); err != nil {
			t.Fatal(err)
		}
	}
	return out, r, err
}

func must(t *testing.T, dir, method string, params any, inline string) map[string]any {
	t.Helper()
	out, _, err := do(t, dir, method, params, []byte(inline))
	if err != nil {
		t.Fatalf("%s %v: %v", method, params, err)
	}
	return out
}

func wantErrno(t *testing.T, dir, method string, params any, errno string) {
	t.Helper()
	start := time.Now()
	_, _, err := do(t, dir, method, params, []byte("x"))
	var e *ipc.Error
	if !errors.As(err, &e) || e.Kind != "os" || e.Errno != errno || e.Path == "" {
		t.Errorf("%s %v: %#v, want %s", method, params, err, errno)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("%s took %v", method, d)
	}
}

type m = map[string]any

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// throughPipe runs op with a pipe whose other end feed works on.
func throughPipe(t *testing.T, dir string, op ipc.FileOp, params any, feed func(f *os.File)) (ipc.FileResult, error) {
	t.Helper()
	raw, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	op.Params = raw
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := w, r
	if op.Method == "file.read" || op.Method == "file.get_tree" {
		mine, theirs = r, w
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		feed(mine)
		mine.Close()
	}()
	result, err := Do(context.Background(), Env{Workdir: dir}, op, theirs)
	<-done
	return result, err
}

func TestReadIsByteTrue(t *testing.T) {
	dir := t.TempDir()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	name := "a\nb \xff'\""
	write(t, filepath.Join(dir, name), string(all), 0o644)
	_, r, err := do(t, dir, "file.read", m{"path": ipc.Bytes(name)}, nil)
	if err != nil || !bytes.Equal(r.Inline, all) || string(r.Result) != `{"size":256,"read":256}` {
		t.Errorf("%v %q %s", err, r.Inline, r.Result)
	}
	_, r, err = do(t, dir, "file.read", m{"path": ipc.Bytes(name), "offset": 250, "length": 3}, nil)
	if err != nil || !bytes.Equal(r.Inline, all[250:253]) {
		t.Errorf("%v %q", err, r.Inline)
	}
	if _, r, err = do(t, dir, "file.read", m{"path": ipc.Bytes(name), "offset": 999}, nil); err != nil ||
		len(r.Inline) != 0 {
		t.Errorf("behind the end: %v %q", err, r.Inline)
	}
}

func TestReadLimits(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", strings.Repeat("x", ipc.InlineLimit+1), 0o644)
	if _, r, err := do(t, dir, "file.read", m{"path": "f"}, nil); err != nil || !r.TooLarge {
		t.Errorf("inline: %v %+v", err, r)
	}
	_, _, err := do(t, dir, "file.read", m{"path": "f", "limit": 100}, nil)
	var e *ipc.Error
	if !errors.As(err, &e) || e.Kind != "too_large" || !strings.Contains(e.Message, "65537") {
		t.Errorf("%v", err)
	}
	var got []byte
	_, err = throughPipe(t, dir, ipc.FileOp{Method: "file.read"}, m{"path": "f"},
		func(f *os.File) { got, _ = io.ReadAll(f) })
	if err != nil || len(got) != ipc.InlineLimit+1 {
		t.Errorf("%v, %d bytes", err, len(got))
	}
	if _, r, err := do(t, dir, "file.read", m{"path": "f", "length": 10, "limit": 10}, nil); err != nil ||
		len(r.Inline) != 10 {
		t.Errorf("%v %d", err, len(r.Inline))
	}
}

func TestSpecialFilesAreRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", dir+"/zero"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"fifo", "/dev/zero", "/dev/null", "zero"} {
		wantErrno(t, dir, "file.read", m{"path": path}, "EINVAL")
		wantErrno(t, dir, "file.write", m{"path": path}, "EINVAL")
		wantErrno(t, dir, "file.write", m{"path": path, "append": true}, "EINVAL")
	}
	wantErrno(t, dir, "file.read", m{"path": "."}, "EISDIR")
	wantErrno(t, dir, "file.read", m{"path": "gone"}, "ENOENT")
	wantErrno(t, dir, "file.read", m{"path": "fifo/x"}, "ENOTDIR")
	if _, err := os.Stat("/proc/cpuinfo"); err == nil {
		if _, r, err := do(t, dir, "file.read", m{"path": "/proc/cpuinfo"}, nil); err != nil ||
			len(r.Inline) < 100 {
			t.Errorf("procfs: %v %d", err, len(r.Inline))
		}
	}
}

func TestWriteNewFile(t *testing.T) {
	dir := t.TempDir()
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	out := must(t, dir, "file.write", m{"path": "a/b/c", "parents": true}, "hi")
	if out["written"] != 2.0 || out["created"] != true || out["dirs_created"] != 2.0 {
		t.Errorf("%v", out)
	}
	if mode := modeOf(t, dir+"/a/b/c").Perm(); mode != 0o640 || content(t, dir+"/a/b/c") != "hi" {
		t.Errorf("mode %o", mode)
	}
	must(t, dir, "file.write", m{"path": "x", "mode": 0o755}, "")
	if mode := modeOf(t, dir+"/x").Perm(); mode != 0o755 {
		t.Errorf("mode %o", mode)
	}
	wantErrno(t, dir, "file.write", m{"path": "q/r"}, "ENOENT")
	wantErrno(t, dir, "file.write", m{"path": "x/r", "parents": true}, "ENOTDIR")
	wantErrno(t, dir, "file.write", m{"path": "a"}, "EISDIR")
}

func TestWriteKeepsModeLinksAndOtherNames(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/real/f", "old", 0o751)
	for name, to := range map[string]string{"l1": "real/l2", "real/l2": "f", "dangling": "real/new"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir+"/real/f", 12345, 54321); err != nil {
			t.Fatal(err)
		}
	}
	if out := must(t, dir, "file.write", m{"path": "l1"}, "new"); out["created"] != false {
		t.Errorf("%v", out)
	}
	info, _ := os.Lstat(dir + "/real/f")
	if uid, gid := node.Owner(info); os.Geteuid() == 0 && (uid != 12345 || gid != 54321) {
		t.Errorf("owner %d:%d", uid, gid)
	}
	if content(t, dir+"/real/f") != "new" || info.Mode().Perm() != 0o751 ||
		modeOf(t, dir+"/l1").Type() != os.ModeSymlink {
		t.Errorf("%q %v", content(t, dir+"/real/f"), info.Mode())
	}
	must(t, dir, "file.write", m{"path": "dangling"}, "there")
	if content(t, dir+"/real/new") != "there" {
		t.Error("the target of a dangling link was not made")
	}
	if err := os.Link(dir+"/real/f", dir+"/other"); err != nil {
		t.Fatal(err)
	}
	must(t, dir, "file.write", m{"path": "other"}, "both, and shorter than nothing")
	must(t, dir, "file.write", m{"path": "other"}, "both")
	if content(t, dir+"/real/f") != "both" {
		t.Error("the other name lost its file")
	}
	must(t, dir, "file.write", m{"path": "other", "append": true}, "+")
	if content(t, dir+"/real/f") != "both+" {
		t.Error("append")
	}
	if err := os.Symlink("loop", dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, dir, "file.write", m{"path": "loop"}, "ELOOP")
	left, _ := filepath.Glob(dir + "/.hermes*")
	if more, _ := filepath.Glob(dir + "/real/.hermes*"); len(left)+len(more) > 0 {
		t.Errorf("left behind: %v %v", left, more)
	}
}

// What takes the place of another file gets room on the disk as it comes: no
// more than it needs, and nothing of that is seen in it.
func TestAReplacementHasTheRoomThatItNeeds(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{1, 100_000, 300_000, 10, 0} {
		text := strings.Repeat("0123456789", size/10+1)[:size]
		must(t, dir, "file.write", m{"path": "f"}, text)
		info, err := os.Stat(dir + "/f")
		if err != nil {
			t.Fatal(err)
		}
		sys, ok := info.Sys().(*syscall.Stat_t)
		if !ok || content(t, dir+"/f") != text || sys.Blocks*512 > int64(size)+64<<10 {
			t.Errorf("%d bytes: %d and %d blocks", size, info.Size(), sys.Blocks)
		}
	}
}

func TestWriteByAnOrdinaryUser(t *testing.T) {
	if !asUser(t) {
		return
	}
	dir := t.TempDir()
	write(t, dir+"/ro/f", "old", 0o644)
	write(t, dir+"/locked", "old", 0o444)
	if err := os.Chmod(dir+"/ro", 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir+"/ro", 0o755)
	must(t, dir, "file.write", m{"path": "ro/f"}, "in place")
	if content(t, dir+"/ro/f") != "in place" {
		t.Error("not written in place")
	}
	wantErrno(t, dir, "file.write", m{"path": "ro/new"}, "EACCES")
	wantErrno(t, dir, "file.write", m{"path": "locked"}, "EACCES")
	if content(t, dir+"/locked") != "old" {
		t.Error("a read-only file was replaced")
	}
}

// asUser runs the calling test again as an ordinary user if this process is root, and reports
// whether the caller is that user.
func asUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	dir, err := os.MkdirTemp("/tmp", "files-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skip("no /proc to find the test program: " + err.Error())
	}
	if err := errors.Join(os.WriteFile(dir+"/test", binary, 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(dir+"/test", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = dir, []string{"TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as uid 65534: %v\n%s", err, out)
	}
	return false
}

func TestBrokenOffWriteKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", "old", 0o644)
	op := ipc.FileOp{Method: "file.write", Committed: true}
	_, err := throughPipe(t, dir, op, m{"path": "f"}, func(f *os.File) { _, _ = f.WriteString("half of it") })
	var e *ipc.Error
	if !errors.As(err, &e) || e.Kind != "canceled" || content(t, dir+"/f") != "old" {
		t.Errorf("%v %q", err, content(t, dir+"/f"))
	}
	big := strings.Repeat("\x01\x00", 100_000)
	_, err = throughPipe(t, dir, op, m{"path": "f"}, func(f *os.File) { _, _ = f.WriteString(big + "\x01") })
	if err != nil || content(t, dir+"/f") != big {
		t.Errorf("%v, %d bytes", err, len(content(t, dir+"/f")))
	}
	_, err = throughPipe(t, dir, op, m{"path": "f"}, func(f *os.File) { _, _ = f.WriteString("\x01") })
	if err != nil || content(t, dir+"/f") != "" {
		t.Errorf("empty: %v %q", err, content(t, dir+"/f"))
	}
	if left, _ := filepath.Glob(dir + "/.hermes*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStandstillIsATimeout(t *testing.T) {
	progressTimeout = 50 * time.Millisecond
	defer func() { progressTimeout = 60 * time.Second }()
	dir := t.TempDir()
	write(t, dir+"/f", strings.Repeat("x", 1<<20), 0o644)
	for _, op := range []ipc.FileOp{{Method: "file.write"}, {Method: "file.put_tree"}, {Method: "file.read"},
		{Method: "file.get_tree"}} {
		path := map[bool]string{true: ".", false: "f"}[op.Method == "file.get_tree"]
		if op.Method == "file.put_tree" {
			path = "tree"
		}
		raw, _ := json.Marshal(m{"path": path})
		op.Params = raw
		r, w, _ := os.Pipe()
		theirs := r
		if op.Method == "file.read" || op.Method == "file.get_tree" {
			theirs = w
		}
		_, err := Do(context.Background(), Env{Workdir: dir}, op, theirs)
		r.Close()
		w.Close()
		var e *ipc.Error
		if !errors.As(err, &e) || e.Kind != "timeout" {
			t.Errorf("%s: %v", op.Method, err)
		}
	}
	if content(t, dir+"/f") == "" {
		t.Error("the file is gone")
	}
}

func TestStatAndList(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/d/b", "12345", 0o640)
	write(t, dir+"/a\n\xff", "", 0o600)
	if err := os.Symlink("d/b", dir+"/l"); err != nil {
		t.Fatal(err)
	}
	s := must(t, dir, "file.stat", m{"path": "l", "follow": false}, "")
	if s["type"] != "link" || s["target"] != "d/b" || s["name"] != "l" {
		t.Errorf("%v", s)
	}
	s = must(t, dir, "file.stat", m{"path": "l", "follow": true}, "")
	if s["type"] != "file" || s["size"] != 5.0 || s["mode"] != float64(0o640) || s["links"] != 1.0 ||
		s["target"] != nil {
		t.Errorf("%v", s)
	}
	out := must(t, dir, "file.list", m{"path": ".", "recursive": true}, "")
	if got := fmt.Sprint(entryPaths(out)); got != "[map[b64:YQr/] d d/b l]" || out["truncated"] != false {
		t.Errorf("%s %v", got, out["truncated"])
	}
	out = must(t, dir, "file.list", m{"path": dir + "/", "limit": 2}, "")
	if got := entryPaths(out); len(got) != 2 || got[1] != dir+"/d" || out["truncated"] != true {
		t.Errorf("%v", out)
	}
	if err := os.Symlink("gone", dir+"/n"); err != nil {
		t.Fatal(err)
	}
	id := s["id"]
	out = must(t, dir, "file.list", m{"path": ".", "only": "link", "follow": true}, "")
	if got := fmt.Sprint(entryPaths(out)); got != "[l n]" {
		t.Errorf("%s", got)
	}
	l, n := out["entries"].([]any)[0].(map[string]any), out["entries"].([]any)[1].(map[string]any)
	if l["type"] != "file" || l["name"] != "l" || l["target"] != "d/b" || l["id"] != id || n["type"] != "link" {
		t.Errorf("%v %v", l, n)
	}
	out = must(t, dir, "file.list", m{"path": ".", "recursive": true, "name": "b"}, "")
	if got := fmt.Sprint(entryPaths(out)); got != "[d/b]" {
		t.Errorf("%s", got)
	}
	wantErrno(t, dir, "file.list", m{"path": "d/b"}, "ENOTDIR")
	wantErrno(t, dir, "file.stat", m{"path": "gone"}, "ENOENT")
}

func TestListMakesDirectoriesReadable(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/d/e", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/d/e/f", "", 0o600)
	for _, path := range []string{dir + "/d/e", dir + "/d"} {
		if err := os.Chmod(path, 0o311); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(dir+"/d", 0o700); _ = os.Chmod(dir+"/d/e", 0o700) })
	if os.Geteuid() != 0 {
		out := must(t, dir, "file.list", m{"path": ".", "recursive": true}, "")
		if got := fmt.Sprint(entryPaths(out)); got != "[d]" {
			t.Errorf("%s", got)
		}
	}
	out := must(t, dir, "file.list", m{"path": ".", "recursive": true, "force": true}, "")
	if got := fmt.Sprint(entryPaths(out)); got != "[d d/e d/e/f]" {
		t.Errorf("%s", got)
	}
	for _, path := range []string{"d", "d/e"} {
		if s := must(t, dir, "file.stat", m{"path": path}, ""); s["mode"] != float64(0o311) {
			t.Errorf("%s: %v", path, s["mode"])
		}
	}
}

func entryPaths(out map[string]any) []any {
	var paths []any
	for _, e := range out["entries"].([]any) {
		paths = append(paths, e.(map[string]any)["path"])
	}
	return paths
}

func TestChanges(t *testing.T) {
	dir := t.TempDir()
	must(t, dir, "file.mkdir", m{"path": "a/b", "parents": true, "mode": 0o700}, "")
	if modeOf(t, dir+"/a/b").Perm() != 0o700 {
		t.Error("mode")
	}
	wantErrno(t, dir, "file.mkdir", m{"path": "a"}, "EEXIST")
	wantErrno(t, dir, "file.mkdir", m{"path": "x/y"}, "ENOENT")
	must(t, dir, "file.mkdir", m{"path": "a/", "exist_ok": true}, "")
	write(t, dir+"/f", "f", 0o644)
	wantErrno(t, dir, "file.mkdir", m{"path": "f", "exist_ok": true}, "EEXIST")
	wantErrno(t, dir, "file.move", m{"source": "f", "target": "a"}, "EEXIST")
	write(t, dir+"/g", "g", 0o644)
	wantErrno(t, dir, "file.move", m{"source": "f", "target": "g"}, "EEXIST")
	must(t, dir, "file.move", m{"source": "f", "target": "g", "overwrite": true}, "")
	must(t, dir, "file.move", m{"source": "g", "target": "a/b/g"}, "")
	must(t, dir, "file.chmod", m{"path": "a/b/g", "mode": 0o611}, "")
	if content(t, dir+"/a/b/g") != "f" || modeOf(t, dir+"/a/b/g").Perm() != 0o611 {
		t.Error("moved file")
	}
	wantErrno(t, dir, "file.move", m{"source": "gone", "target": "x"}, "ENOENT")
	wantErrno(t, dir, "file.remove", m{"path": "a"}, "ENOTEMPTY")
	wantErrno(t, dir, "file.remove", m{"path": "gone"}, "ENOENT")
	must(t, dir, "file.remove", m{"path": "gone", "missing_ok": true}, "")
	outside := t.TempDir()
	write(t, outside+"/keep", "", 0o644)
	if err := os.Symlink(outside, dir+"/a/out"); err != nil {
		t.Fatal(err)
	}
	must(t, dir, "file.remove", m{"path": "a/out/", "recursive": true}, "")
	if err := os.Symlink(outside, dir+"/a/out"); err != nil {
		t.Fatal(err)
	}
	must(t, dir, "file.remove", m{"path": "a", "recursive": true}, "")
	if content(t, outside+"/keep") != "" {
		t.Error("removed through a link")
	}
	for _, method := range []string{"file.stat", "file.write", "file.chmod", "nonsense"} {
		_, _, err := do(t, dir, method, m{"path": "", "mode": 1}, nil)
		var e *ipc.Error
		if !errors.As(err, &e) || e.Kind != "bad_request" {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestCopyTree(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/s/x/run", "#!", 0o4755)
	write(t, dir+"/s/a", strings.Repeat("a", 200_000), 0o640)
	if err := errors.Join(os.Symlink("a", dir+"/s/l"), os.Link(dir+"/s/a", dir+"/s/b"),
		syscall.Mkfifo(dir+"/s/fifo", 0o600), os.Chmod(dir+"/s/x", 0o750)); err != nil {
		t.Fatal(err)
	}
	when := time.Unix(1_000_000_000, 500_000_000)
	if err := os.Chtimes(dir+"/s/a", when, when); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, dir, "file.copy", m{"source": "s", "target": "t"}, "EISDIR")
	wantErrno(t, dir, "file.copy", m{"source": "s", "target": "s/x/y", "recursive": true}, "EINVAL")
	out := must(t, dir, "file.copy", m{"source": "s", "target": "t", "recursive": true}, "")
	if out["files"] != 4.0 || len(out["skipped"].([]any)) != 1 {
		t.Errorf("%v", out)
	}
	a, _ := os.Stat(dir + "/t/a")
	b, _ := os.Stat(dir + "/t/b")
	if to, _ := os.Readlink(dir + "/t/l"); to != "a" || !os.SameFile(a, b) || !a.ModTime().Equal(when) ||
		a.Mode().Perm() != 0o640 {
		t.Errorf("%q %v %v", to, a.ModTime(), a.Mode())
	}
	if mode := modeOf(t, dir+"/t/x/run"); mode != 0o755 || modeOf(t, dir+"/t/x").Perm() != 0o750 {
		t.Errorf("%v", mode)
	}
	must(t, dir, "file.copy", m{"source": "s/l", "target": "single"}, "")
	if modeOf(t, dir+"/single").Type() != 0 || len(content(t, dir+"/single")) != 200_000 {
		t.Error("single copy")
	}
	wantErrno(t, dir, "file.copy", m{"source": "s/a", "target": "s/b"}, "EINVAL")
}

func TestMoveAcrossFileSystems(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "files-test")
	if err != nil {
		t.Skip("no second file system here: " + err.Error())
	}
	defer os.RemoveAll(other)
	dir := t.TempDir()
	write(t, dir+"/s/a", "a", 0o640)
	if err := os.Rename(dir+"/s", other+"/s"); !errors.Is(err, syscall.EXDEV) {
		t.Skip("the same file system")
	}
	must(t, dir, "file.move", m{"source": "s", "target": other + "/s"}, "")
	if _, err := os.Lstat(dir + "/s"); err == nil || content(t, other+"/s/a") != "a" ||
		modeOf(t, other+"/s/a").Perm() != 0o640 {
		t.Error("not moved")
	}
	write(t, dir+"/f", "f", 0o640)
	wantErrno(t, dir, "file.move", m{"source": "f", "target": other + "/s"}, "EEXIST")
	if err := syscall.Mkfifo(dir+"/p", 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/q/f", "f", 0o640)
	if err := os.Rename(dir+"/p", dir+"/q/p"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, dir, "file.move", m{"source": "q", "target": other + "/q"}, "EXDEV")
	if _, err := os.Lstat(other + "/q"); err == nil || content(t, dir+"/q/f") != "f" {
		t.Error("half moved")
	}
}
