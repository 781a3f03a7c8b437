package files

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"hermes-exec/runner/internal/ipc"
)

func archiveOf(f *testing.F, format tar.Format) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range []tar.Header{
		{Name: "d", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 3},
		{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "f"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "d/f"},
		{Name: "p", Typeflag: tar.TypeFifo}, {Name: "../out", Typeflag: tar.TypeReg},
		{Name: "d/up", Typeflag: tar.TypeSymlink, Linkname: "../.."},
		{Name: string(bytes.Repeat([]byte("n"), 120)), Typeflag: tar.TypeReg},
	} {
		h.Format = format
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return out.Bytes()
}

// No archive creates a file beside its destination.
func FuzzPutTree(f *testing.F) {
	f.Add(archiveOf(f, tar.FormatPAX))
	f.Add(archiveOf(f, tar.FormatGNU))
	f.Fuzz(func(t *testing.T, input []byte) {
		around, err := os.MkdirTemp("", "fuzz-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(around)
		top := filepath.Join(around, "top")
		result, err := Do(context.Background(), Env{Workdir: around},
			ipc.FileOp{Method: "file.put_tree", Params: []byte(`{"path":"top"}`), Inline: input}, nil)
		if err == nil && len(result.Result) > 32<<20 {
			t.Fatalf("an answer of %d bytes", len(result.Result))
		}
		if err != nil && ipc.AsError(err).Kind == "internal" {
			t.Fatal(err)
		}
		there, err := os.ReadDir(around)
		if err != nil || len(there) > 1 || len(there) == 1 && there[0].Name() != filepath.Base(top) {
			t.Fatalf("%v, %v", there, err)
		}
	})
}
