package archive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hermes-exec/runner/internal/node"
)

func TestAFileThatGotTheNumberOfOneThatWasRemovedIsNotTakenForIt(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	linked := func(name string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("data of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(filepath.Join(dir, name), filepath.Join(dir, name+" again")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return node.IDOf(info).String()
	}
	var out bytes.Buffer
	k := &packer{ctx: t.Context(), root: root, out: tar.NewWriter(&out), links: node.NewLinks(),
		buffer: make([]byte, 1<<10)}
	before := linked("first")
	for _, name := range []string{"first", "first again"} {
		if err := k.entry(name); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(20 * time.Millisecond) // longer than the clock of the kernel stands
	for _, name := range []string{"first", "first again"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	next := ""
	for i := 0; i < 200 && next == ""; i++ {
		if name := fmt.Sprint("next ", i); linked(name) == before {
			next = name
		}
	}
	if next == "" {
		t.Skip("this file system does not use a number again so soon")
	}
	if err := k.entry(next); err != nil {
		t.Fatal(err)
	}
	if err := k.out.Close(); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]byte{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		kinds[h.Name] = h.Typeflag
	}
	if kinds["first again"] != tar.TypeLink || kinds[next] != tar.TypeReg {
		t.Errorf("%v", kinds)
	}
}
