package files

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/archive"
	"hermes-exec/runner/internal/ipc"
)

func tarOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Format = tar.FormatPAX
		data := []byte("data of " + h.Name)
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(data))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func put(t *testing.T, dir, path string, stream []byte) (archive.UnpackResult, error) {
	t.Helper()
	r, err := throughPipe(t, dir, ipc.FileOp{Method: "file.put_tree", Committed: true}, m{"path": path},
		func(f *os.File) {
			_, _ = f.Write(append(stream, 1))
		})
	var out archive.UnpackResult
	if err == nil {
		err = json.Unmarshal(r.Result, &out)
	}
	return out, err
}

func get(t *testing.T, dir, path string) (map[string]*tar.Header, map[string]string, archive.PackResult) {
	t.Helper()
	headers, data := map[string]*tar.Header{}, map[string]string{}
	var readErr error
	r, err := throughPipe(t, dir, ipc.FileOp{Method: "file.get_tree"}, m{"path": path}, func(f *os.File) {
		in := tar.NewReader(f)
		for readErr == nil {
			var h *tar.Header
			if h, readErr = in.Next(); readErr == nil {
				headers[h.Name] = h
				var text []byte
				text, readErr = io.ReadAll(in)
				data[h.Name] = string(text)
			}
		}
		_, _ = io.Copy(io.Discard, f)
	})
	if err != nil || readErr != io.EOF {
		t.Fatalf("%v, stream %v", err, readErr)
	}
	var out archive.PackResult
	if err := json.Unmarshal(r.Result, &out); err != nil {
		t.Fatal(err)
	}
	return headers, data, out
}

func TestTreeThereAndBack(t *testing.T) {
	dir := t.TempDir()
	names := []string{"plain", "new\nline", "raw\xff\xfe", strings.Repeat("long/", 60) + "name",
		strings.Repeat("n", 200)}
	when := time.Unix(1_200_000_000, 123_000_000)
	for _, name := range names {
		write(t, dir+"/s/"+name, "data of "+name, 0o640)
		if err := os.Chtimes(dir+"/s/"+name, when, when); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/s/suid", "", 0o4755)
	if err := errors.Join(os.Mkdir(dir+"/s/empty", 0o700), os.Symlink("plain", dir+"/s/sym"),
		os.Link(dir+"/s/plain", dir+"/s/zhard"),
		syscall.Mkfifo(dir+"/s/fifo", 0o600), os.Chmod(dir+"/s/empty", 0o2711),
		os.Chtimes(dir+"/s/empty", when, when)); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	r, err := throughPipe(t, dir, ipc.FileOp{Method: "file.get_tree"}, m{"path": "s"},
		func(f *os.File) { _, _ = io.Copy(&stream, f) })
	if err != nil || !strings.Contains(string(r.Result), "fifo: is a fifo") {
		t.Fatalf("%v %s", err, r.Result)
	}
	out, err := put(t, dir, "t/deeper", stream.Bytes())
	if err != nil || len(out.Refused) != 0 || out.Files != 8 {
		t.Fatalf("%v %+v", err, out)
	}
	for _, name := range names {
		info, err := os.Lstat(dir + "/t/deeper/" + name)
		if err != nil || content(t, dir+"/t/deeper/"+name) != "data of "+name || info.Mode() != 0o640 ||
			!info.ModTime().Equal(when) {
			t.Errorf("%q: %v %v", name, err, info)
		}
	}
	a, _ := os.Stat(dir + "/t/deeper/plain")
	b, _ := os.Stat(dir + "/t/deeper/zhard")
	if to, _ := os.Readlink(dir + "/t/deeper/sym"); to != "plain" || !os.SameFile(a, b) {
		t.Error("links")
	}
	empty, _ := os.Stat(dir + "/t/deeper/empty")
	if modeOf(t, dir+"/t/deeper/suid") != 0o755 || empty.Mode() != os.ModeDir|0o711 || !empty.ModTime().Equal(when) {
		t.Errorf("%v %v", modeOf(t, dir+"/t/deeper/suid"), empty)
	}
}

func TestPutTreeRefusesWhatLeadsOut(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write(t, outside+"/secret", "secret", 0o600)
	if err := errors.Join(os.Mkdir(dir+"/d", 0o755), os.Symlink(outside, dir+"/d/planted"),
		os.Symlink(outside+"/secret", dir+"/d/file"), os.Mkdir(dir+"/d/directory", 0o755)); err != nil {
		t.Fatal(err)
	}
	stream := tarOf(t,
		tar.Header{Name: "../up"}, tar.Header{Name: "a/../../up"}, tar.Header{Name: "/abs"},
		tar.Header{Name: "planted/x"},
		tar.Header{Name: "s1", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "s2", Typeflag: tar.TypeSymlink, Linkname: "../x"},
		tar.Header{Name: "q/s3", Typeflag: tar.TypeSymlink, Linkname: "../../x"},
		tar.Header{Name: "s4", Typeflag: tar.TypeSymlink, Linkname: "directory/../../x"},
		tar.Header{Name: "h1", Typeflag: tar.TypeLink, Linkname: "../up"},
		tar.Header{Name: "h2", Typeflag: tar.TypeLink, Linkname: "planted/secret"},
		tar.Header{Name: "h3", Typeflag: tar.TypeLink, Linkname: "file"},
		tar.Header{Name: "h4", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		tar.Header{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5},
		tar.Header{Name: "fifo", Typeflag: tar.TypeFifo},
		tar.Header{Name: "directory"}, tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "directory"},
		tar.Header{Name: "link/through"},
		tar.Header{Name: "planted", Typeflag: tar.TypeDir}, tar.Header{Name: "file"}, tar.Header{Name: "./ok//x"},
		tar.Header{Name: "q/fine", Typeflag: tar.TypeSymlink, Linkname: "../ok/x"},
	)
	out, err := put(t, dir, "d", stream)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Refused) != 17 || out.Files != 4 {
		t.Errorf("%d refused, %d files: %q", len(out.Refused), out.Files, out.Refused)
	}
	if content(t, outside+"/secret") != "secret" || content(t, dir+"/d/file") != "data of file" ||
		content(t, dir+"/d/q/fine") != "data of ./ok//x" {
		t.Error("contents")
	}
	if left, _ := filepath.Glob(outside + "/*"); len(left) != 1 {
		t.Errorf("written outside: %v", left)
	}
	if _, err := os.Lstat(dir + "/up"); err == nil {
		t.Error("written above")
	}
	if left, _ := filepath.Glob(dir + "/d/.hermes*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPutTreeAgainstARacingLink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/d", 0o755), os.Mkdir(dir+"/d/real", 0o755),
		os.Symlink(outside, dir+"/d/away")); err != nil {
		t.Fatal(err)
	}
	var headers []tar.Header
	for i := range 100 {
		headers = append(headers, tar.Header{Name: fmt.Sprintf("real/f%d", i)},
			tar.Header{Name: fmt.Sprintf("other/g%d", i)})
	}
	stream := tarOf(t, headers...)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			_ = os.Rename(dir+"/d/real", dir+"/d/kept")
			_ = os.Rename(dir+"/d/away", dir+"/d/real")
			_ = os.Rename(dir+"/d/real", dir+"/d/away")
			_ = os.Rename(dir+"/d/kept", dir+"/d/real")
		}
	}()
	for range 3 {
		if _, err := put(t, dir, "d", stream); err != nil && !strings.Contains(err.Error(), "exist") &&
			!strings.Contains(err.Error(), "escapes") {
			t.Log(err)
		}
	}
	stop.Store(true)
	<-done
	if left, _ := filepath.Glob(outside + "/*"); len(left) != 0 {
		t.Errorf("written outside: %v", left)
	}
}

func TestAReadOnlyDirectoryIsOpenedForItsEntriesOnly(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/d/closed/old", "old", 0o644)
	t.Cleanup(func() { _ = os.Chmod(dir+"/d/closed", 0o755) })
	if err := os.Chmod(dir+"/d/closed", 0o555); err != nil {
		t.Fatal(err)
	}
	whole := tarOf(t, tar.Header{Name: "closed", Typeflag: tar.TypeDir, Mode: 0o550},
		tar.Header{Name: "closed/new", Mode: 0o600})
	for _, stream := range [][]byte{bytes.Clone(whole[:len(whole)-2000]), whole} {
		_, err := put(t, dir, "d", stream)
		want, left := os.FileMode(0o550), 2
		if len(stream) < len(whole) {
			want, left = 0o555, 1
		}
		if (err == nil) != (left == 2) {
			t.Fatal(err)
		}
		found, _ := os.ReadDir(dir + "/d/closed")
		if mode := modeOf(t, dir+"/d/closed").Perm(); mode != want || len(found) != left {
			t.Errorf("mode %o, %v", mode, found)
		}
	}
}

func TestBrokenAndHugeStreams(t *testing.T) {
	dir := t.TempDir()
	whole := tarOf(t, tar.Header{Name: "a"}, tar.Header{Name: "b"})
	for _, stream := range [][]byte{whole[:1500], []byte(strings.Repeat("garbage", 300)), whole[:515]} {
		_, err := put(t, dir, "d", stream)
		var e *ipc.Error
		if !errors.As(err, &e) || e.Kind != "bad_request" {
			t.Errorf("%d bytes: %v", len(stream), err)
		}
	}
	// A header with a size of 8 EiB writes only the bytes of the stream.
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "huge", Size: 1 << 62, Format: tar.FormatPAX,
		Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := put(t, dir, "d", append(b.Bytes(), make([]byte, 100)...)); err == nil {
		t.Error("a cut stream was accepted")
	}
	if left, _ := filepath.Glob(dir + "/d/*"); len(left) > 1 {
		t.Errorf("left behind: %v", left)
	}
	sparse := tarOf(t, tar.Header{Name: "s"})
	copy(sparse[1024+156:], "S") // the entry's own type, behind its PAX header
	_, _ = put(t, dir, "d", sparse)
	if info, err := os.Stat(dir + "/d/s"); err == nil && info.Size() > 1<<20 {
		t.Errorf("sparse entry made %d bytes", info.Size())
	}
}

func TestGetTreeWhileFilesChange(t *testing.T) {
	dir := t.TempDir()
	for i := range 200 {
		write(t, fmt.Sprintf("%s/s/f%03d", dir, i), strings.Repeat("x", 20_000), 0o644)
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			name := fmt.Sprintf("%s/s/f%03d", dir, (i*7)%200)
			switch i % 4 {
			case 0:
				_ = os.Truncate(name, 10)
			case 1:
				_ = os.Remove(name)
			case 2:
				_ = os.WriteFile(name, bytes.Repeat([]byte("y"), 60_000), 0o644)
			case 3:
				_ = os.Remove(name)
				_ = syscall.Mkfifo(name, 0o600)
			}
		}
	}()
	for range 20 {
		get(t, dir, "s")
	}
	stop.Store(true)
	<-done
}

func TestGetTreeOfOneFileAndOfNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", "one", 0o600)
	headers, data, _ := get(t, dir, "f")
	if len(headers) != 1 || data["f"] != "one" {
		t.Errorf("%v", data)
	}
	if err := os.Mkdir(dir+"/none", 0o755); err != nil {
		t.Fatal(err)
	}
	if headers, _, _ = get(t, dir, "none"); len(headers) != 0 {
		t.Errorf("%v", headers)
	}
	_, err := throughPipe(t, dir, ipc.FileOp{Method: "file.get_tree"}, m{"path": "gone"},
		func(f *os.File) { _, _ = io.Copy(io.Discard, f) })
	var e *ipc.Error
	if !errors.As(err, &e) || e.Errno != "ENOENT" {
		t.Error(err)
	}
}
