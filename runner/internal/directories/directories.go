package directories

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/rootfs"
)

// What a checkpoint holds of a slot.
const (
	HoldsRoot        = "root"        // everything, of a slot with a root of its own
	HoldsDirectories = "directories" // the directories that only this slot has
)

// Names are the names of a slot's directories in the runner's directory of the slot: the workspace, the
// home, the directory for temporary files, and /var/tmp or nothing that the slot sees. They are the parts
// of layers.
var Names = []string{"workspace", "home", "tmp", "var-tmp"}

// maxLeftOut is how many entries of a slot a checkpoint names that it does not hold.
const maxLeftOut = 100

// Check returns why a checkpoint cannot hold this of a slot.
func Check(s *isolation.Setup, holds string) error {
	switch {
	case s.View.Disk != nil:
		return refuse("a checkpoint cannot hold a slot with a limit of its disk")
	case holds == HoldsRoot && s.View.Layer == "":
		return refuse("a checkpoint holds the root of a slot with a root of its own only")
	case !layers.IsSupported:
		return refuse("checkpoints need Linux")
	case holds == HoldsDirectories && s.OwnRoot():
		return refuse("a checkpoint holds the whole root of a slot with a root of its own")
	case holds == HoldsDirectories && s.Level == isolation.Exclusive:
		return refuse("an exclusive slot has the whole sandbox and no directories of its own")
	}
	return nil
}

func refuse(format string, args ...any) error {
	return &ipc.Error{Kind: "no_layers", Message: fmt.Sprintf(format, args...)}
}

// Directories are the directories of one slot.
type Directories struct {
	Dir      string       // of the slot, with the directories in it
	Inside   []string     // their paths in the slot, as in Names
	Hidden   int          // how many of the last ones the slot does not see
	Owner    layers.Owner // of the files that the tenant makes
	IsRoot   bool         // the tenant is root, and can make files of others
	ReadOnly []string     // paths of the sandbox that the slot sees, maybe in the directories
}

// Of returns the directories of a slot with a directory of the runner, whose files have an owner.
func Of(dir string, s *isolation.Setup, owner layers.Owner) *Directories {
	last := filepath.Join(dir, Names[3])
	d := &Directories{Dir: dir, Inside: []string{s.Workspace, s.Home, s.Tmp, last}, Hidden: 1,
		Owner: owner, IsRoot: s.Switch && s.UID == 0, ReadOnly: s.View.ReadOnly}
	for _, b := range s.View.Binds {
		if b.Source == last {
			d.Inside[3], d.Hidden = b.Target, 0
		}
	}
	return d
}

// Paths returns the paths in the slot that the slot knows.
func (d *Directories) Paths() []ipc.Bytes {
	var paths []ipc.Bytes
	for _, path := range d.Inside[:len(d.Inside)-d.Hidden] {
		paths = append(paths, ipc.Bytes(path))
	}
	return paths
}

// Layout describes where a slot sees its directories.
type Layout struct {
	// Dir is the runner's directory of the slot. Directories that Paths lacks are in it.
	Dir ipc.Bytes `json:"dir"`
	// Paths has the directories, by their names, that are at the same path in each slot.
	Paths map[string]ipc.Bytes `json:"paths"`
}

// Layout returns where the slot sees its directories.
func (d *Directories) Layout() Layout {
	paths := map[string]ipc.Bytes{}
	for n, path := range d.Paths() {
		if !strings.HasPrefix(string(path), d.Dir+"/") {
			paths[Names[n]] = path
		}
	}
	return Layout{ipc.Bytes(d.Dir), paths}
}

// Validate returns why a layout cannot be of a slot.
func (l Layout) Validate() error {
	for name, path := range l.Paths {
		if !slices.Contains(Names, name) || !filepath.IsAbs(string(path)) {
			return fmt.Errorf("a slot has no directory %q at %q", name, path)
		}
	}
	if dir := string(l.Dir); !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
		return fmt.Errorf("%q is no directory of a slot", dir)
	}
	return nil
}

// CheckFits returns why a slot with another layout cannot have the directories of this one.
func (l Layout) CheckFits(other Layout) error {
	at := func(path ipc.Bytes) string { return cmp.Or(string(path), "a path of its own") }
	for _, name := range Names {
		if from, to := l.Paths[name], other.Paths[name]; from != to {
			return &ipc.Error{Kind: "other_root", Message: fmt.Sprintf(
				"the slot of the checkpoint has its directory %s at %s, and this slot at %s", name, at(from), at(to))}
		}
	}
	return nil
}

// owners returns what becomes of the owners of entries in a copy.
func (d *Directories) owners(from, to layers.Owner) layers.Owners {
	return layers.Owners{From: from, To: to, Others: d.IsRoot}
}

// Copy copies the directories into a new layer. All layers of the store together may have limit bytes;
// 0 for no limit.
func (d *Directories) Copy(ctx context.Context, store *layers.Store, limit int64) (*layers.Layer, error) {
	layer, err := d.add(store, limit)
	if err != nil {
		return nil, err
	}
	if err := d.copyTo(ctx, layer); err != nil {
		return nil, errors.Join(err, layers.Stack{layer}.Release())
	}
	layer.Complete()
	return layer, nil
}

// add makes an empty layer, for which there is room if there is a limit.
func (d *Directories) add(store *layers.Store, limit int64) (*layers.Layer, error) {
	if limit == 0 {
		return store.Add()
	}
	var size layers.Size
	for n, name := range Names {
		more, err := layers.MeasureOwned(filepath.Join(d.Dir, name), d.owners(d.Owner, d.Owner))
		if err != nil {
			return nil, d.explain(err, n)
		}
		size = size.Plus(more)
	}
	return store.Reserve(size, limit)
}

func (d *Directories) copyTo(ctx context.Context, layer *layers.Layer) error {
	layer.Owner = &d.Owner
	count := 0
	for n, name := range Names {
		skipped, err := layers.CopyOwned(ctx, filepath.Join(d.Dir, name), layer.Path(n), d.owners(d.Owner, d.Owner))
		if err != nil {
			return d.explain(err, n)
		}
		layer.AddPart(n)
		for _, entry := range skipped.Entries {
			layer.LeftOut = append(layer.LeftOut, filepath.Join(d.Inside[n], entry))
		}
		count += skipped.Count
	}
	if layer.LeftOut = layer.LeftOut[:min(maxLeftOut, len(layer.LeftOut))]; count > len(layer.LeftOut) {
		layer.LeftOut = append(layer.LeftOut, fmt.Sprintf("%d more entries", count-len(layer.LeftOut)))
	}
	return d.CheckMountPoints(layer)
}

// explain begins the path of an error with directory n of the slot.
func (d *Directories) explain(err error, n int) error {
	var pathErr *fs.PathError
	if !errors.As(err, &pathErr) || filepath.IsAbs(pathErr.Path) {
		return err
	}
	return &fs.PathError{Op: pathErr.Op, Path: filepath.Join(d.Inside[n], pathErr.Path), Err: pathErr.Err}
}

// CheckMountPoints refuses a layer that would lead a mount of the slot elsewhere.
func (d *Directories) CheckMountPoints(layer *layers.Layer) error {
	dirs := map[string]string{}
	for _, n := range layer.Parts() {
		dirs[d.Inside[n]] = layer.Path(n)
	}
	if at, path := rootfs.FindObstacle(d.ReadOnly, dirs); at != "" {
		return refuse("%s is in the way of the read-only path %s: remove it from the slot", at, path)
	}
	return nil
}

// Fill copies a layer into the directories, which are new.
func (d *Directories) Fill(ctx context.Context, layer *layers.Layer) error {
	for _, n := range layer.Parts() {
		dir := filepath.Join(d.Dir, Names[n])
		if err := os.Remove(dir); err != nil {
			return err
		}
		skipped, err := layers.CopyOwned(ctx, layer.Path(n), dir, d.owners(*layer.Owner, d.Owner))
		if err != nil {
			return d.explain(err, n)
		}
		if skipped.Count > 0 {
			return refuse("the slot cannot have %s", filepath.Join(d.Inside[n], skipped.Entries[0]))
		}
	}
	return nil
}
