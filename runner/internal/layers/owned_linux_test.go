package layers

import (
	"archive/tar"
	"bytes"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	parent = 270_001 // the users of two slots
	child  = 270_002
)

func needsRoot(t *testing.T) {
	t.Helper()
	if !root() {
		t.Skip("makes entries of other users")
	}
}

// give gives everything below dir to a user.
func give(t *testing.T, dir string, user int) {
	t.Helper()
	for name := range describe(t, dir) {
		at := dir + "/" + name
		var st syscall.Stat_t
		must(t, syscall.Lstat(at, &st))
		must(t, os.Lchown(at, user, user))
		if st.Mode&syscall.S_IFMT != syscall.S_IFLNK { // a new owner clears set-user-id bits
			must(t, syscall.Chmod(at, st.Mode&0o7777))
		}
	}
}

// makeOwnTree makes the tree of makeTree without whiteouts, which directories of a slot do not have.
func makeOwnTree(t *testing.T, dir string) {
	t.Helper()
	makeTree(t, dir)
	for _, whiteout := range []string{"/a/b/removed", "/a/b/removed too"} {
		must(t, os.Remove(dir+whiteout))
	}
}

func TestOwnedCopyBelongsToTheOtherUser(t *testing.T) {
	needsRoot(t)
	dir := layerDir(t)
	makeOwnTree(t, dir+"/from")
	give(t, dir+"/from", parent)
	before := describe(t, dir+"/from")
	skipped, err := CopyOwned(t.Context(), dir+"/from", dir+"/to", Owners{From: Owner{UID: parent, GID: parent},
		To: Owner{child, child}})
	if must(t, err); skipped.Count > 0 {
		t.Errorf("%v", skipped)
	}
	requireEqual(t, before, describe(t, dir+"/from"))
	give(t, dir+"/from", child)
	requireEqual(t, describe(t, dir+"/from"), describe(t, dir+"/to"))
	if line := describe(t, dir+"/to")["a/b/c/script"]; !strings.HasPrefix(line, "106755 270002:270002") {
		t.Error(line)
	}
}

func TestOwnedCopyLeavesOutWhatAnotherUserMade(t *testing.T) {
	needsRoot(t)
	dir := layerDir(t)
	must(t, os.MkdirAll(dir+"/from/own/of root/below", 0o755))
	must(t, os.WriteFile(dir+"/secret", []byte("of root"), 0o600))
	must(t, os.Link(dir+"/secret", dir+"/from/link"))
	must(t, os.Link(dir+"/secret", dir+"/from/own/link"))
	must(t, os.WriteFile(dir+"/from/shell", []byte("x"), 0o755))
	must(t, os.WriteFile(dir+"/from/kept", []byte("x"), 0o644))
	must(t, os.WriteFile(dir+"/from/own/group", []byte("x"), 0o644))
	must(t, os.WriteFile(dir+"/from/own/of root/below/file", []byte("x"), 0o644))
	must(t, syscall.Mknod(dir+"/from/disk", syscall.S_IFBLK|0o666, 7<<8))
	must(t, syscall.Mknod(dir+"/from/null", syscall.S_IFCHR|0o666, 1<<8|3))
	must(t, syscall.Mknod(dir+"/from/whiteout", syscall.S_IFCHR, 0))
	must(t, os.Symlink("kept", dir+"/from/symlink"))
	for _, name := range []string{"", "own", "kept", "own/group", "disk", "null", "whiteout"} {
		must(t, os.Lchown(dir+"/from/"+name, parent, parent))
	}
	must(t, os.Lchown(dir+"/from/own/group", parent, 42))
	must(t, syscall.Chmod(dir+"/from/own/group", 0o2755))
	must(t, syscall.Chmod(dir+"/from/shell", 0o4755))
	skipped, err := CopyOwned(t.Context(), dir+"/from", dir+"/to", Owners{From: Owner{UID: parent, GID: parent},
		To: Owner{child, child}})
	must(t, err)
	got := describe(t, dir+"/to")
	for name, line := range got {
		if !strings.Contains(line, " 270002:270002 ") {
			t.Errorf("%s: %s", name, line)
		}
	}
	if names := strings.Join(slices.Sorted(maps.Keys(got)), " "); names != ". kept own own/group" {
		t.Error(names)
	}
	others, devices := "it belongs to another user", "it is a device"
	want := map[string]bool{"link: " + others: true, "own/link: " + others: true, "shell: " + others: true,
		"own/of root: " + others: true, "symlink: " + others: true, "disk: " + devices: true,
		"null: " + devices: true, "whiteout: " + devices: true}
	for _, entry := range skipped.Entries {
		if !want[entry] {
			t.Error(entry)
		}
	}
	if skipped.Count != len(want) || len(skipped.Entries) != len(want) {
		t.Errorf("%+v", skipped)
	}
	// The user of a slot that is root could make all of them but the devices.
	skipped, err = CopyOwned(t.Context(), dir+"/from", dir+"/all", Owners{Others: true})
	if must(t, err); skipped.Count != 3 {
		t.Errorf("%+v", skipped)
	}
	all := describe(t, dir+"/from")
	maps.DeleteFunc(all, func(name, _ string) bool { return name == "disk" || name == "null" || name == "whiteout" })
	requireEqual(t, all, describe(t, dir+"/all"))
}

func TestOwnedCopyRefusesTheDirectoryOfAnotherUser(t *testing.T) {
	needsRoot(t)
	dir := layerDir(t)
	must(t, os.Mkdir(dir+"/from", 0o755))
	_, err := CopyOwned(t.Context(), dir+"/from", dir+"/to", Owners{From: Owner{UID: parent, GID: parent},
		To: Owner{child, child}})
	if err == nil {
		t.Error("copied")
	}
	requireGone(t, dir+"/to")
}

func TestFilesWithoutCapabilitiesInAnOwnedCopy(t *testing.T) {
	needsRoot(t)
	dir := layerDir(t)
	makeTree(t, dir+"/from")
	if line := describe(t, dir+"/from")["a/large"]; !strings.Contains(line, "security.capability") {
		t.Fatal(line)
	}
	must(t, os.Lchown(dir+"/from", 1000, 1000))
	_, err := CopyOwned(t.Context(), dir+"/from", dir+"/to", Owners{From: Owner{1000, 1000}, To: Owner{child, child}})
	must(t, err)
	for name, line := range describe(t, dir+"/to") {
		if strings.Contains(line, "security.capability") {
			t.Errorf("%s: %s", name, line)
		}
	}
}

// packOwned returns the archive of a copy of directories with an owner.
func packOwned(t *testing.T, dir string, owner Owner) []byte {
	t.Helper()
	var out bytes.Buffer
	skipped, err := Pack(t.Context(), dir, &owner, &out)
	if err != nil || skipped.Count > 0 {
		t.Fatal(err, skipped)
	}
	return out.Bytes()
}

func TestArchiveOfAnOwnedCopyNamesNoUser(t *testing.T) {
	needsRoot(t)
	dir := layerDir(t)
	makeOwnTree(t, dir+"/from")
	must(t, syscall.Setxattr(dir+"/from/a/large", overlayPrefix+"redirect", []byte("/of the tenant"), 0))
	give(t, dir+"/from", parent)
	archive := packOwned(t, dir+"/from", Owner{parent, parent})
	must(t, Unpack(t.Context(), bytes.NewReader(archive), dir+"/to", Limits{Owned: true}))
	give(t, dir+"/to", parent)
	requireEqual(t, describe(t, dir+"/from"), describe(t, dir+"/to"))
	if line := describe(t, dir+"/to")["a/large"]; !strings.Contains(line, "user.overlay.redirect") {
		t.Error(line)
	}
	// What a tenant that is root has made of others keeps its owners.
	must(t, os.Lchown(dir+"/from/a/large", 7, 8))
	must(t, os.Lchown(dir+"/from/a/b", 0, 8))
	give(t, dir+"/to", 0)
	must(t, os.Lchown(dir+"/from", 0, 0))
	must(t, Unpack(t.Context(), bytes.NewReader(packOwned(t, dir+"/from", Owner{})), dir+"/all", Limits{Owned: true}))
	requireEqual(t, describe(t, dir+"/from"), describe(t, dir+"/all"))
}

func TestOwnedArchiveWithAnythingElseIsRefused(t *testing.T) {
	dir := layerDir(t)
	top := header(tar.TypeDir, "./")
	other := func(e entry) entry { return change(e, func(h *tar.Header) { h.Uid = 4711 }) }
	device := change(header(tar.TypeChar, "null"), func(h *tar.Header) { h.Devmajor, h.Devminor = 1, 3 })
	for name, entries := range map[string][]entry{
		"whiteout":                   {top, header(tar.TypeChar, "a")},
		"device":                     {top, device},
		"parent":                     {top, header(tar.TypeReg, "../a")},
		"directory of another user":  {other(top), header(tar.TypeReg, "a")},
		"attribute of the system":    {top, header(tar.TypeReg, "a", recordXattr+"trusted.a", "eA==")},
		"through a link":             {top, link(tar.TypeSymlink, "a", "/tmp"), header(tar.TypeReg, "a/file")},
		"hard link to something old": {top, link(tar.TypeLink, "a", "/etc/passwd")},
	} {
		var archive bytes.Buffer
		out := tar.NewWriter(&archive)
		for _, e := range entries {
			h := e.Header
			h.Format, h.AccessTime, h.ModTime = tar.FormatPAX, time.Unix(1, 0), time.Unix(1, 5)
			must(t, out.WriteHeader(&h))
		}
		must(t, out.Close())
		err := Unpack(t.Context(), &archive, dir+"/layer", Limits{Owned: true})
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		requireGone(t, dir+"/layer")
		removeTree(dir + "/layer")
	}
}

// An ordinary user can shut itself out of its files.
func TestCopyOfShutEntries(t *testing.T) {
	dir := layerDir(t)
	must(t, os.MkdirAll(dir+"/from/shut/deep/er", 0o755))
	must(t, os.MkdirAll(dir+"/from/listed", 0o755))
	for _, name := range []string{"/from/file", "/from/shut/deep/file", "/from/listed/file"} {
		must(t, os.WriteFile(dir+name, []byte("content"), 0))
	}
	modes := map[string]uint32{"/shut/deep/er": 0, "/shut/deep": 0o300, "/shut": 0, "/listed": 0o400, "": 0o311}
	must(t, syscall.Chmod(dir+"/from/listed", modes["/listed"]))
	for _, name := range []string{"/shut/deep/er", "/shut/deep", "/shut", ""} {
		must(t, syscall.Chmod(dir+"/from"+name, modes[name]))
	}
	must(t, Copy(t.Context(), dir+"/from", dir+"/to", Bound{}))
	size, err := Measure(dir+"/to", Bound{})
	if must(t, err); size.Entries != 7 || size.Bytes == 0 {
		t.Errorf("%+v", size)
	}
	for _, tree := range []string{"/from", "/to"} {
		for _, name := range []string{"", "/listed", "/shut", "/shut/deep", "/shut/deep/er"} {
			var st syscall.Stat_t
			if must(t, syscall.Lstat(dir+tree+name, &st)); st.Mode&0o7777 != modes[name] {
				t.Errorf("%s%s: %o", tree, name, st.Mode)
			}
			must(t, syscall.Chmod(dir+tree+name, 0o700)) // to see what is in it
		}
		for _, name := range []string{"/file", "/shut/deep/file", "/listed/file"} {
			var st syscall.Stat_t
			if must(t, syscall.Lstat(dir+tree+name, &st)); st.Mode&0o7777 != 0 || st.Size != 7 {
				t.Errorf("%s%s: %o", tree, name, st.Mode)
			}
		}
	}
}
