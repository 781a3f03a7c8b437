package layers

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// entry is one entry of a hostile archive. Empty fields get values that are right.
type entry struct {
	tar.Header
	body string
}

func writeArchive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, e := range entries {
		h := e.Header
		h.Size = max(h.Size, int64(len(e.body)))
		if h.Format == 0 {
			h.Format, h.AccessTime, h.ModTime = tar.FormatPAX, time.Unix(1, 0), time.Unix(1, 5)
		}
		if !root() && h.Uid == 0 && h.Gid == 0 {
			h.Uid, h.Gid = os.Geteuid(), os.Getegid()
		}
		must(t, archive.WriteHeader(&h))
		_, err := archive.Write([]byte(e.body))
		must(t, err)
	}
	must(t, archive.Close())
	return out.Bytes()
}

func header(kind byte, name string, records ...string) entry {
	e := entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o755, PAXRecords: map[string]string{}}}
	for i := 0; i < len(records); i += 2 {
		e.PAXRecords[records[i]] = records[i+1]
	}
	return e
}

func link(kind byte, name, target string) entry {
	e := header(kind, name)
	e.Linkname = target
	return e
}

func body(e entry, content string) entry { e.body = content; return e }

func change(e entry, do func(h *tar.Header)) entry { do(&e.Header); return e }

// hostileArchives are archives that Pack does not write.
func hostileArchives(t testing.TB, outside string) map[string][]byte {
	top, sub := header(tar.TypeDir, "./"), header(tar.TypeDir, "sub/")
	file := header(tar.TypeReg, "sub/file")
	device := func(kind byte, major, minor int64) entry {
		return change(header(kind, "device"), func(h *tar.Header) { h.Devmajor, h.Devminor = major, minor })
	}
	holes := func(size, count, list string) entry {
		return body(header(tar.TypeReg, "holes", recordSize, size, recordParts, count), list)
	}
	const number = "\x00\x00\x00\x00\x00\x00\x00"
	archives := map[string][]byte{"no tar": bytes.Repeat([]byte("x"), 2000)}
	addAll := func(name string, entries ...entry) { archives[name] = writeArchive(t, entries...) }
	add := func(name string, entries ...entry) { addAll(name, append([]entry{top}, entries...)...) }
	addAll("nothing")
	addAll("no layer's directory", sub)
	addAll("a file as the layer's directory", header(tar.TypeReg, "file"))
	add("absolute", header(tar.TypeReg, outside+"/absolute"))
	add("absolute at the top", header(tar.TypeReg, "/absolute"))
	add("parent", header(tar.TypeReg, "../parent"))
	add("parent in the middle", sub, header(tar.TypeReg, "sub/../../parent"))
	add("parent alone", header(tar.TypeReg, ".."))
	add("parent directory", header(tar.TypeDir, "../"))
	add("dot", header(tar.TypeDir, "./sub/"))
	add("the top again", top)
	add("two slashes", sub, header(tar.TypeReg, "sub//file"))
	add("two slashes at the end", header(tar.TypeDir, "sub//"))
	add("long name", header(tar.TypeReg, strings.Repeat("n", 256)))
	add("directory is missing", file)
	add("directory was left", sub, header(tar.TypeReg, "after"), file)
	add("directory twice", sub, header(tar.TypeDir, "other/"), sub)
	add("file twice", sub, file, file)
	add("file over a link", link(tar.TypeSymlink, "a", outside+"/secret"), header(tar.TypeReg, "a"))
	add("file through a link", link(tar.TypeSymlink, "a", outside), header(tar.TypeReg, "a/file"))
	add("directory over a link",
		link(tar.TypeSymlink, "a", outside), header(tar.TypeDir, "a/"), header(tar.TypeReg, "a/file"))
	add("directory through a link", link(tar.TypeSymlink, "a", ".."), header(tar.TypeDir, "a/b/"))
	add("hard link to the outside", link(tar.TypeLink, "a", outside+"/secret"))
	add("hard link up", link(tar.TypeLink, "a", "../outside/secret"))
	add("hard link to a path", sub, file, link(tar.TypeLink, "a", "sub/file"))
	add("hard link to a missing number", link(tar.TypeLink, "a", "0"))
	add("hard link to a negative number", header(tar.TypeReg, "a", recordLink, "0"), link(tar.TypeLink, "b", "-1"))
	add("hard link to a later number", header(tar.TypeReg, "a", recordLink, "0"), link(tar.TypeLink, "b", "1"))
	add("numbers do not begin with 0", header(tar.TypeReg, "a", recordLink, "1"))
	add("a number that is a path", header(tar.TypeReg, "a", recordLink, "../../x"))
	add("null", device(tar.TypeChar, 1, 3))
	add("disk", device(tar.TypeBlock, 8, 0))
	add("block device 0:0", device(tar.TypeBlock, 0, 0))
	add("contiguous file", header(tar.TypeCont, "a"))
	add("link at a mount point", link(tar.TypeSymlink, "proc", outside))
	add("file above a mount point", header(tar.TypeReg, "mnt"))
	add("whiteout at a mount point", header(tar.TypeDir, "mnt/"), header(tar.TypeChar, "mnt/data"))
	add("socket above a mount point", header(tar.TypeFifo, "mnt", recordType, socketType))
	add("redirect", header(tar.TypeDir, "a/", recordXattr+"user.overlay.redirect", "L2V0Yw=="))
	add("metacopy", header(tar.TypeReg, "a", recordXattr+"user.overlay.metacopy", ""))
	add("origin", header(tar.TypeDir, "a/", recordXattr+"user.overlay.origin", "eA=="))
	add("redirect, escaped name", header(tar.TypeDir, "a/", recordXattr+"user%2Eoverlay.redirect", "L2V0Yw=="))
	add("opaque of another kind", header(tar.TypeDir, "a/", recordXattr+"user.overlay.opaque", "eA=="))
	add("opaque file", header(tar.TypeReg, "a", recordXattr+"user.overlay.opaque", "eQ=="))
	add("xattr whiteout", header(tar.TypeReg, "a", recordXattr+"user.overlay.whiteout", "eQ=="))
	add("trusted attribute", header(tar.TypeDir, "a/", recordXattr+"trusted.overlay.redirect", "L2V0Yw=="))
	add("security label", header(tar.TypeReg, "a", recordXattr+"security.selinux", "eA=="))
	add("attribute in GNU tar's record", header(tar.TypeReg, "a", "SCHILY.xattr.user.overlay.redirect", "/etc"))
	add("attribute on a whiteout", header(tar.TypeChar, "a", recordXattr+"user.a", "eA=="))
	add("many attributes", header(tar.TypeReg, "a", recordXattr+"user.a", strings.Repeat("AAAA", 50_000)))
	add("attribute that is not base64", header(tar.TypeReg, "a", recordXattr+"user.a", "?"))
	add("unknown record", header(tar.TypeReg, "a", "HERMES.other", "1"))
	add("no owner", change(file, func(h *tar.Header) { h.Name, h.Uid = "a", 1<<32-1 }))
	add("large group", change(file, func(h *tar.Header) { h.Name, h.Gid = "a", 1<<40 }))
	add("large mode", change(file, func(h *tar.Header) { h.Name, h.Mode = "a", 0o100777 }))
	add("GNU tar", change(file, func(h *tar.Header) { h.Name, h.PAXRecords, h.Format = "a", nil, tar.FormatGNU }))
	add("holes: no list", holes("10", "1", ""))
	add("holes: no count", holes("10", "", ""))
	add("holes: negative size", holes("-1", "0", ""))
	add("holes: huge count", holes("10", "1000000000", ""))
	add("holes: more data", holes("10", "0", "x"))
	add("holes: less data", holes("10", "1", number+"\x00"+number+"\x05data"))
	add("holes: beyond", holes("10", "1", number+"\x07"+number+"\x04data"))
	add("holes: negative", holes("10", "1", "\xff"+number+number+"\x04data"))
	add("holes: empty part", holes("10", "1", number+"\x00"+number+"\x00"))
	add("holes: backwards", holes("10", "2", number+"\x04"+number+"\x02"+number+"\x00"+number+"\x02data"))
	var deep []entry
	for i := range maxDepth + 1 {
		deep = append(deep, header(tar.TypeDir, strings.Repeat("d/", i+1)))
	}
	add("deep", deep...)
	return archives
}

func TestHostileArchivesAreRefusedAndLeaveNothing(t *testing.T) {
	dir := layerDir(t)
	outside := dir + "/outside"
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(outside+"/secret", []byte("secret"), 0o644))
	before := describe(t, dir)
	limits := Limits{Directories: []string{"proc", "mnt/data"}}
	for name, archive := range hostileArchives(t, outside) {
		err := Unpack(t.Context(), bytes.NewReader(archive), dir+"/layer", limits)
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		requireGone(t, dir+"/layer")
		removeTree(dir + "/layer")
	}
	after := describe(t, dir)
	delete(before, ".") // its time
	delete(after, ".")
	requireEqual(t, before, after)
	for _, name := range []string{"/absolute", filepath.Dir(dir) + "/parent"} {
		requireGone(t, name)
	}
}

func FuzzUnpack(f *testing.F) {
	dir := layerDir(f)
	makeTree(f, dir+"/from")
	f.Add(pack(f, dir+"/from"))
	for _, archive := range hostileArchives(f, dir+"/outside") {
		f.Add(archive)
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		dir := layerDir(t)
		limits := Limits{Bound: Bound{Entries: 1000, Bytes: 1 << 20}, Directories: []string{"proc", "mnt/data"}}
		owner := RunnerOwner()
		for _, packed := range []*Owner{nil, &owner} {
			removeTree(dir + "/layer")
			limits.Owned = packed != nil
			err := Unpack(t.Context(), bytes.NewReader(archive), dir+"/layer", limits)
			if err != nil {
				requireGone(t, dir+"/layer")
			} else if _, err := Pack(t.Context(), dir+"/layer", packed, io.Discard); err != nil {
				t.Error(err)
			}
		}
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			if e.Name() != "layer" {
				t.Errorf("%s was made", e.Name())
			}
		}
	})
}
