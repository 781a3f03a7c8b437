package disk

import (
	"os"
	"syscall"
	"testing"
)

func TestSpreadMarksADirectoryOfExt4(t *testing.T) {
	const ext4 = 0xEF53
	dir := t.TempDir()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != ext4 {
		t.Skip("the temporary directory is not on ext4")
	}
	inner := dir + "/inner"
	Spread(dir)
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{dir: topDirectory, inner: 0} {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		var flags [2]uint32
		if !callIoctl(file, getFlags, &flags) || flags[0]&topDirectory != want {
			t.Errorf("%s has the flags %x", path, flags[0])
		}
	}
	Spread(dir + "/none") // a directory that cannot be opened is left as it is
}
