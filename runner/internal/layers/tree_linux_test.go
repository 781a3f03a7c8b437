package layers

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/openat"
)

// root reports whether the test may make entries of other users.
func root() bool { return os.Geteuid() == 0 }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// describe returns a line for each entry below dir, and for dir itself, with everything that a copy
// must have.
func describe(t testing.TB, dir string) map[string]string {
	t.Helper()
	lines, firsts := map[string]string{}, map[fileID]string{}
	must(t, filepath.WalkDir(dir, func(at string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(at, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, at)
		if st.Mode&syscall.S_IFMT == syscall.S_IFCHR {
			lines[name] = fmt.Sprintf("device %d", st.Rdev)
			return nil
		}
		line := fmt.Sprintf("%o %d:%d %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFLNK:
			target, err := os.Readlink(at)
			must(t, err)
			lines[name] = line + " -> " + target
			return nil
		case syscall.S_IFREG:
			line += describeContents(t, at, &st)
			if first, ok := firsts[idOf(&st)]; ok {
				line += " = " + first
			}
			firsts[idOf(&st)] = name
		}
		lines[name] = line + describeXattrs(t, at)
		return nil
	}))
	return lines
}

func describeContents(t testing.TB, at string, st *syscall.Stat_t) string {
	content, err := os.ReadFile(at)
	must(t, err)
	file, err := os.Open(at)
	must(t, err)
	defer file.Close()
	parts := ""
	for end := int64(0); end < st.Size; {
		begin, err := file.Seek(end, 3)
		if err != nil {
			break
		}
		end, err = file.Seek(begin, 4)
		must(t, err)
		parts += fmt.Sprintf(" %d-%d", begin, end)
	}
	return fmt.Sprintf(" %d bytes %x%s", st.Size, sha256.Sum256(content), parts)
}

func describeXattrs(t testing.TB, at string) string {
	names := make([]byte, 64<<10)
	n, err := syscall.Listxattr(at, names)
	must(t, err)
	attributes := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		if name != "" {
			value := make([]byte, 64<<10)
			size, err := syscall.Getxattr(at, name, value)
			must(t, err)
			attributes[name] = string(value[:size])
		}
	}
	line := ""
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		line += fmt.Sprintf(" %s=%x", name, attributes[name])
	}
	return line
}

func requireEqual(t testing.TB, want, got map[string]string) {
	t.Helper()
	for name, line := range want {
		if got[name] != line {
			t.Errorf("%q:\nwant %s\ngot  %s", name, line, got[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is new: %s", name, got[name])
		}
	}
}

// acl returns a POSIX access list in which one more user may do what the mode's group may do.
func acl(user uint32, rights uint16) []byte {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	const nobody = 1<<32 - 1
	for _, entry := range []struct {
		tag, rights uint16
		id          uint32
	}{{0x01, 7, nobody}, {0x02, rights, user}, {0x04, 4, nobody}, {0x10, rights | 4, nobody}, {0x20, 0, nobody}} {
		list = binary.LittleEndian.AppendUint16(list, entry.tag)
		list = binary.LittleEndian.AppendUint16(list, entry.rights)
		list = binary.LittleEndian.AppendUint32(list, entry.id)
	}
	return list
}

// makeTree fills a new directory with entries of every kind that a tenant can make, and returns its
// description.
func makeTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) { t.Helper(); must(t, os.WriteFile(at(name), []byte(content), 0o644)) }
	long := strings.Repeat("n", 255)
	for _, name := range []string{"", "a", "a/b", "a/b/c", "empty", "shut", "sticky", "inherits", "replaced",
		"not\xffutf8\n\"=;", long} {
		must(t, os.Mkdir(at(name), 0o755))
	}
	for name, content := range map[string]string{"a/file": "text", "a/b/empty": "", "a/b/c/script": "#!/bin/sh\n",
		"shut/inside": "x", "inherits/inside": "x", "\xfe": "x", long + "/" + long: "x",
		"a/large": strings.Repeat("0123456789abcdef", 20_000), "not\xffutf8\n\"=;/..x": "x", "sticky/ ": ""} {
		write(name, content)
	}
	makeSparse(t, at("a/sparse"), 3<<20, 64<<10, 1<<20)
	makeSparse(t, at("a/hole"), 5<<20)
	makeSparse(t, at("a/tail"), 70_001, 65_536)
	must(t, os.Link(at("a/file"), at("a/b/c/same")))
	must(t, os.Link(at("a/file"), at("zz-same")))
	must(t, os.Link(at("a/sparse"), at("sparse-same")))
	must(t, os.Symlink("../nowhere", at("a/dangling")))
	must(t, os.Symlink("/etc/passwd", at("absolute")))
	must(t, os.Symlink(strings.Repeat("t/", 2000), at("long")))
	must(t, syscall.Mkfifo(at("fifo"), 0o620))
	must(t, syscall.Mknod(at("socket"), syscall.S_IFSOCK|0o700, 0))
	must(t, syscall.Mknod(at("a/b/removed"), syscall.S_IFCHR, 0))
	must(t, os.Link(at("a/b/removed"), at("a/b/removed too")))
	for name, attributes := range map[string]map[string]string{
		"a/file": {"user.text": "value", "user.empty": "", "user.a=b%c": "\x00\xff",
			"user.long": strings.Repeat("v", 2000)},
		"a/large":   {"user.overlay.overlay.opaque": "y"},
		"replaced":  {"user.overlay.opaque": "y", "user.dir": "value"},
		"fifo":      {"system.posix_acl_access": string(acl(1234, 6))},
		"a/b/empty": {"system.posix_acl_access": string(acl(1234, 2))},
		"inherits":  {"system.posix_acl_default": string(acl(1234, 7)), "system.posix_acl_access": string(acl(99, 5))},
	} {
		for key, value := range attributes {
			must(t, syscall.Setxattr(at(name), key, []byte(value), 0))
		}
	}
	if root() {
		owners := map[string]int{"a": 1000, "a/b/c/script": 65534, "fifo": 7, "socket": 8, "sticky": 99}
		for name, owner := range owners {
			must(t, os.Lchown(at(name), owner, owner+1))
		}
		must(t, os.Lchown(at("absolute"), 1000, 1001))
		capabilities := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
		must(t, syscall.Setxattr(at("a/large"), "security.capability", []byte(capabilities), 0))
		must(t, os.Chmod(at("shut"), 0))
	}
	must(t, syscall.Chmod(at("a/b/c/script"), 0o6755))
	must(t, syscall.Chmod(at("sticky"), 0o3777))
	must(t, syscall.Chmod(at("a/b/c"), 0o2500))
	must(t, syscall.Chmod(at("\xfe"), 0))
	for name, when := range map[string]time.Time{"a/file": time.Unix(-5, 999_999_999), "a/b/c": time.Unix(1, 7),
		"a/b": time.Unix(4_000_000_000, 1), "": time.Unix(1_234_567_890, 123_456_789)} {
		must(t, os.Chtimes(at(name), when.Add(-time.Hour), when))
	}
	for i, name := range []string{"absolute", "fifo", "socket"} {
		parent, err := os.Open(filepath.Dir(at(name)))
		must(t, err)
		moment := syscall.Timespec{Sec: int64(1000 + i), Nsec: 5}
		must(t, openat.SetTimes(int(parent.Fd()), name, [2]syscall.Timespec{moment, moment}))
		_ = parent.Close()
	}
	must(t, os.Chtimes(dir, time.Unix(3, 4), time.Unix(1_234_567_890, 123_456_789)))
	if !root() { // to describe it
		must(t, syscall.Chmod(at("\xfe"), 0o400))
	}
	return describe(t, dir)
}

// makeSparse makes a file of a size with a block of data at some places.
func makeSparse(t testing.TB, at string, size int64, places ...int64) {
	t.Helper()
	file, err := os.Create(at)
	must(t, err)
	defer file.Close()
	for _, place := range places {
		_, err := file.WriteAt([]byte(strings.Repeat("d", 4096))[:min(4096, size-place)], place)
		must(t, err)
	}
	must(t, file.Truncate(size))
}

// nest makes directories in one another, each with a file.
func nest(t testing.TB, dir, name string, levels int) {
	t.Helper()
	fd, err := syscall.Open(dir, openat.DirFlags, 0)
	must(t, err)
	for range levels {
		must(t, syscall.Mkdirat(fd, name, 0o755))
		next, err := syscall.Openat(fd, name, openat.DirFlags, 0)
		must(t, err)
		file, err := syscall.Openat(next, "file", openat.NewFileFlags, 0o644)
		must(t, err)
		_ = syscall.Close(file)
		_ = syscall.Close(fd)
		fd = next
	}
	_ = syscall.Close(fd)
}

// layerDir returns a new directory, removed even if it holds a deep tree.
func layerDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "layers")
	must(t, err)
	t.Cleanup(func() {
		for _, problem := range removeTree(dir) {
			t.Error(problem)
		}
	})
	return dir
}
