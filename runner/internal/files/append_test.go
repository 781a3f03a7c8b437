package files

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestAnAppendThatFailsLeavesTheFileAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken off")
	half := func() io.Reader {
		return io.MultiReader(strings.NewReader(strings.Repeat("x", 200_000)), iotest.ErrReader(broken))
	}
	if n, err := appendTo(path, nil, half()); !errors.Is(err, broken) || n != 200_000 {
		t.Fatal(n, err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "before" {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	// Data that another process has appended meanwhile stays.
	other := func(p []byte) (int, error) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		_, err = f.WriteString(" and after")
		return 0, errors.Join(err, broken)
	}
	if _, err := appendTo(path, nil, io.MultiReader(strings.NewReader("half"), readerFunc(other))); !errors.Is(err,
		broken) {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "beforehalf and after" {
		t.Errorf("%q, %v", data, err)
	}
}

type readerFunc func(p []byte) (int, error)

func (r readerFunc) Read(p []byte) (int, error) { return r(p) }

func TestAFileWithTwoNamesStaysAsItWasWhenAWriteIsBrokenOff(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "before", 0o640)
	if err := os.Link(dir+"/file", dir+"/other"); err != nil {
		t.Fatal(err)
	}
	old, err := os.Lstat(dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken off")
	half := io.MultiReader(strings.NewReader(strings.Repeat("x", 200_000)), iotest.ErrReader(broken))
	if _, err := replace(dir+"/file", old, nil, half, dir); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if text := content(t, dir+"/other"); text != "before" {
		t.Errorf("%d bytes", len(text))
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}
