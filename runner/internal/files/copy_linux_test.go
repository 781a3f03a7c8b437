package files

import (
	"bytes"
	"context"
	"os"
	"syscall"
	"testing"
)

func TestHolesStayHoles(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(dir + "/sparse")
	if err != nil {
		t.Fatal(err)
	}
	const size = 3 << 30
	for _, at := range []int64{0, 1 << 20, size - 5} {
		if _, err := file.WriteAt([]byte("data\n"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Truncate(size + 1<<20); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	c := newCopier(context.Background(), dir, false)
	if err := c.copy(dir+"/sparse", dir+"/copy"); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dir+"/copy", &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != size+1<<20 || st.Blocks*512 > 1<<20 || c.bytes != st.Size {
		t.Errorf("size %d, %d blocks, told %d", st.Size, st.Blocks, c.bytes)
	}
	copied, err := os.Open(dir + "/copy")
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	for _, at := range []int64{0, 1 << 20, size - 5} {
		got := make([]byte, 10)
		if _, err := copied.ReadAt(got, at); err != nil || !bytes.Equal(got, []byte("data\n\x00\x00\x00\x00\x00")) {
			t.Errorf("at %d: %q %v", at, got, err)
		}
	}
}
