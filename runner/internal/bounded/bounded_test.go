package bounded

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
)

func TestReadTakesNoMoreThanItMay(t *testing.T) {
	text := strings.Repeat("x", 10_000)
	for most, want := range map[int]struct {
		size  int
		whole bool
	}{0: {0, false}, 1: {1, false}, 4096: {4096, false}, 9_999: {9_999, false}, 10_000: {10_000, true},
		1 << 20: {10_000, true}} {
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(text),
			"byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
			data, whole, err := Read(r, most)
			if err != nil || len(data) != want.size || whole != want.whole {
				t.Errorf("%s, at most %d: %d bytes, whole %v, %v", name, most, len(data), whole, err)
			}
		}
	}
	if data, whole, err := Read(bytes.NewReader(nil), 5); len(data) != 0 || !whole || err != nil {
		t.Errorf("nothing: %q %v %v", data, whole, err)
	}
	if _, _, err := Read(iotest.ErrReader(syscall.EIO), 5); !errors.Is(err, syscall.EIO) {
		t.Errorf("an error: %v", err)
	}
}

func TestReadFileRefusesWhatIsNoRegularFile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", t.TempDir()} {
		if data, _, err := ReadFile(path, 100); err == nil || len(data) != 0 ||
			!strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("%s: %q %v", path, data, err)
		}
	}
}

func TestReadWholeSaysThatAFileIsTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadWhole(path, 5); string(data) != "12345" || err != nil {
		t.Errorf("%q %v", data, err)
	}
	_, err := ReadWhole(path, 4)
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), path+": is too large: more than 4 bytes") {
		t.Error(err)
	}
}

func TestNamesOfALargeDirectory(t *testing.T) {
	dir := t.TempDir()
	for i := range 1500 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	if err := EachName(dir, func(name string) bool { seen[name] = true; return true }); err != nil || len(seen) != 1500 {
		t.Errorf("%d names, %v", len(seen), err)
	}
	for most, want := range map[int]int{1: 1, 1200: 1200, 5000: 1500} {
		if n, err := Count(dir, most); n != want || err != nil {
			t.Errorf("at most %d: %d, %v", most, n, err)
		}
	}
	if _, err := Count(filepath.Join(dir, "gone"), 1); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
