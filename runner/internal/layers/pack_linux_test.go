package layers

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
)

func pack(t testing.TB, dir string) []byte {
	t.Helper()
	var out bytes.Buffer
	skipped, err := Pack(t.Context(), dir, nil, &out)
	if err != nil || skipped.Count > 0 {
		t.Fatal(err, skipped)
	}
	return out.Bytes()
}

func TestUnpackedLayerEqualsThePackedOne(t *testing.T) {
	dir := layerDir(t)
	want := makeTree(t, dir+"/from")
	archive := pack(t, dir+"/from")
	in := bytes.NewReader(archive)
	must(t, Unpack(t.Context(), in, dir+"/to", Limits{}))
	if in.Len() > 0 {
		t.Errorf("%d bytes are left", in.Len())
	}
	requireEqual(t, want, describe(t, dir+"/to"))
	size, err := Measure(dir+"/from", Bound{})
	must(t, err)
	must(t, Unpack(t.Context(), bytes.NewReader(archive), dir+"/again", Limits{Bound: Bound(size)}))
	requireEqual(t, want, describe(t, dir+"/again"))
	for _, bound := range []Bound{{Entries: size.Entries - 1}, {Bytes: size.Bytes - 8192}, {Bytes: 1}} {
		err := Unpack(t.Context(), bytes.NewReader(archive), dir+"/more", Limits{Bound: bound})
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: %v", bound, err)
		}
		requireGone(t, dir+"/more")
	}
}

func TestUnpackedUpperIsTheSameLayerElsewhere(t *testing.T) {
	dir := layerDir(t)
	makeImage(t, dir+"/image")
	mountOverlay(t, dir+"/slot", dir+"/upper", dir+"/work", dir+"/image")
	changeImage(t, dir+"/slot")
	want := describe(t, dir+"/slot")
	archive := pack(t, dir+"/upper")
	must(t, Copy(t.Context(), dir+"/image", dir+"/other image", Bound{}))
	must(t, Unpack(t.Context(), bytes.NewReader(archive), dir+"/layer", Limits{}))
	mountOverlay(t, dir+"/fork", dir+"/upper2", dir+"/work2", dir+"/layer", dir+"/other image")
	must(t, os.Chtimes(dir+"/fork", timeOf(t, dir+"/slot"), timeOf(t, dir+"/slot")))
	requireEqual(t, want, describe(t, dir+"/fork"))
	for _, line := range describe(t, dir+"/layer") {
		if strings.Contains(line, "origin") || strings.Contains(line, "impure") {
			t.Error(line)
		}
	}
}

func TestTruncatedArchiveLeavesNothing(t *testing.T) {
	dir := layerDir(t)
	must(t, os.MkdirAll(dir+"/from/a", 0o755))
	must(t, os.WriteFile(dir+"/from/a/file", make([]byte, 2000), 0o644))
	makeSparse(t, dir+"/from/a/sparse", 1<<30, 1<<20)
	archive := pack(t, dir+"/from")
	for size := 0; size < len(archive); size += 256 {
		err := Unpack(t.Context(), bytes.NewReader(archive[:size]), dir+"/to", Limits{})
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%d of %d bytes: %v", size, len(archive), err)
		}
		requireGone(t, dir+"/to")
	}
}

func TestArchiveHasALimitOfDepth(t *testing.T) {
	dir := layerDir(t)
	for levels, fits := range map[int]bool{maxDepth: true, maxDepth + 1: false} {
		from := fmt.Sprint(dir, "/", levels)
		must(t, os.Mkdir(from, 0o755))
		nest(t, from, "d", levels)
		var out bytes.Buffer
		_, err := Pack(t.Context(), from, nil, &out)
		if fits != (err == nil) || !fits && !errors.Is(err, syscall.ENAMETOOLONG) {
			t.Errorf("%d: %v", levels, err)
		}
		if !fits {
			continue
		}
		must(t, Unpack(t.Context(), &out, dir+"/to", Limits{}))
		if size, err := Measure(dir+"/to", Bound{}); err != nil || size.Entries != 2*levels {
			t.Errorf("%v %v", size, err)
		}
	}
}

func TestPackReportsAttributesThatItLeavesOut(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // ext4 has no attributes of this size
	dir := layerDir(t)
	must(t, os.Mkdir(dir+"/from", 0o755))
	must(t, os.WriteFile(dir+"/from/file", nil, 0o644))
	for i := range 5 {
		err := syscall.Setxattr(dir+"/from/file", fmt.Sprint("user.", i), make([]byte, 40<<10), 0)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.E2BIG) {
			t.Skip("a file system without large attributes")
		}
		must(t, err)
	}
	var out bytes.Buffer
	skipped, err := Pack(t.Context(), dir+"/from", nil, &out)
	if err != nil || skipped.Count != 1 || !strings.HasPrefix(skipped.Entries[0], "file: ") {
		t.Errorf("%v %v", skipped, err)
	}
	must(t, Unpack(t.Context(), &out, dir+"/to", Limits{}))
}

func TestPackRefusesLayersOfOtherOverlays(t *testing.T) {
	for _, attribute := range []string{"redirect", "metacopy", "opaque"} {
		dir := layerDir(t)
		must(t, os.MkdirAll(dir+"/sub", 0o755))
		must(t, syscall.Setxattr(dir+"/sub", overlayPrefix+attribute, []byte("x"), 0))
		_, err := Pack(t.Context(), dir, nil, io.Discard)
		if !errors.Is(err, errForeignOverlay) || !strings.Contains(err.Error(), "sub") {
			t.Errorf("%s: %v", attribute, err)
		}
	}
}

func TestUnpackKeepsLinksAndDirectoriesOfMountPoints(t *testing.T) {
	dir := layerDir(t)
	archive := writeArchive(t, header(tar.TypeDir, "./"), link(tar.TypeSymlink, "proc2", "/etc"),
		header(tar.TypeDir, "mnt/"), header(tar.TypeDir, "mnt/data/"), link(tar.TypeSymlink, "mnt/data/x", "/"))
	limits := Limits{Directories: []string{"proc", "mnt/data"}}
	must(t, Unpack(t.Context(), bytes.NewReader(archive), dir+"/layer", limits))
	if target, err := os.Readlink(dir + "/layer/mnt/data/x"); err != nil || target != "/" {
		t.Error(target, err)
	}
}

func TestUnpackStopsWhenCanceled(t *testing.T) {
	dir := layerDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	archive := writeArchive(t, header(tar.TypeDir, "./"), body(header(tar.TypeReg, "a"), strings.Repeat("x", 1<<20)))
	first, rest := bytes.NewReader(archive[:4096]), bytes.NewReader(archive[4096:])
	in := io.MultiReader(first, readerFunc(func() { cancel() }), rest)
	if err := Unpack(ctx, in, dir+"/layer", Limits{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	requireGone(t, dir+"/layer")
	if err := Unpack(t.Context(), bytes.NewReader(archive), dir, Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
}

// readerFunc is an empty reader with an effect.
type readerFunc func()

func (f readerFunc) Read([]byte) (int, error) { f(); return 0, io.EOF }
