package layers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// changeAtRandom does what a tenant may do with the directory of an overlay.
func changeAtRandom(t *testing.T, random *rand.Rand, at string) {
	t.Helper()
	name := func() string {
		path := at
		for range 1 + random.IntN(3) {
			path += fmt.Sprintf("/%c", 'a'+random.IntN(4))
		}
		return path
	}
	for range 16 {
		var err error
		switch path := name(); random.IntN(10) {
		case 0, 1:
			err = os.MkdirAll(path, 0o755)
		case 2, 3:
			err = os.WriteFile(path, fmt.Append(nil, random.IntN(1000)), 0o640)
		case 4:
			err = os.RemoveAll(path)
		case 5:
			err = os.Chmod(path, 0o700+os.FileMode(random.IntN(64)))
		case 6:
			err = os.Symlink(name(), path)
		case 7:
			err = os.Link(name(), path)
		case 8:
			err = syscall.Setxattr(path, fmt.Sprint("user.", random.IntN(2)), fmt.Append(nil, random.IntN(9)), 0)
		case 9:
			err = syscall.Removexattr(path, fmt.Sprint("user.", random.IntN(2)))
		}
		var errno syscall.Errno
		if err != nil && !errors.As(err, &errno) {
			t.Fatal(err)
		}
	}
}

// An overlay with the merged layer shows what an overlay with all layers shows, whatever lies below and
// above them.
func TestMergedLayersHaveTheSameEffect(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir, random := layerDir(t), rand.New(rand.NewPCG(seed, 1))
			must(t, os.Mkdir(dir+"/0", 0o755))
			for range 4 {
				changeAtRandom(t, random, dir+"/0")
			}
			lowers := []string{dir + "/0"} // the newest first
			const count = 7
			for n := 1; n <= count; n++ {
				at, upper := fmt.Sprint(dir, "/at", n), fmt.Sprint(dir, "/", n)
				mountOverlay(t, at, upper, fmt.Sprint(dir, "/work", n), lowers...)
				changeAtRandom(t, random, at)
				must(t, syscall.Unmount(at, 0))
				lowers = slices.Insert(lowers, 0, upper)
			}
			first, last := 1+random.IntN(3), 4+random.IntN(4)
			var uppers []string
			for n := first; n <= last; n++ {
				uppers = append(uppers, fmt.Sprint(dir, "/", n))
			}
			must(t, mergeUppers(t.Context(), uppers, dir+"/merged"))
			fewer := slices.Replace(slices.Clone(lowers), count-last, count-first+1, dir+"/merged")
			mountOverlay(t, dir+"/all", "", "", lowers...)
			mountOverlay(t, dir+"/fewer", "", "", fewer...)
			requireEqual(t, describe(t, dir+"/all"), describe(t, dir+"/fewer"))
		})
	}
}

func TestMergeReplacesTheCheapestLayers(t *testing.T) {
	store := NewStore(layerDir(t)+"/layers", os.RemoveAll)
	var stack Stack
	for n := range MaxStack {
		layer, err := store.Add()
		must(t, err)
		must(t, os.Mkdir(layer.Path(0), 0o755))
		must(t, os.WriteFile(fmt.Sprint(layer.Path(0), "/n", n), make([]byte, 1000), 0o600))
		if n < 70 {
			must(t, os.WriteFile(layer.Path(0)+"/large", make([]byte, 1<<20), 0o600))
		}
		layer.AddPart(0)
		layer.Complete()
		stack = stack.With(layer)
	}
	merged, err := stack.Merge(t.Context())
	must(t, err)
	if len(merged) != MaxStack-mergedCount+1 {
		t.Fatal(len(merged))
	}
	at := slices.IndexFunc(merged, func(l *Layer) bool { return !slices.Contains(stack, l) })
	if at < 70 {
		t.Errorf("layers from %d were merged, which are large", at)
	}
	for _, l := range merged[at:] {
		if names, err := filepath.Glob(l.Path(0) + "/large"); err != nil || names != nil {
			t.Error(names, err)
		}
	}
	names, err := os.ReadDir(merged[at].Path(0))
	must(t, err)
	if len(names) != mergedCount {
		t.Error(len(names))
	}
	must(t, stack.Release())
	must(t, merged.Release())
	if left, err := os.ReadDir(store.Dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// A merge that fails leaves no layer, and every layer of the stack as it was.
func TestFailedMergeLeavesNothing(t *testing.T) {
	store := NewStore(layerDir(t)+"/layers", os.RemoveAll)
	var stack Stack
	for range mergedCount {
		layer, err := store.Add()
		must(t, err)
		stack = stack.With(finish(t, layer, 10))
	}
	_, err := stack[0].Size()
	must(t, err)
	must(t, errors.Join(os.Remove(stack[1].Path(0)+"/file"), syscall.Mknod(stack[1].Path(0)+"/file", syscall.S_IFCHR|0o600, 1<<8|3)))
	if _, err := stack.Merge(t.Context()); !errors.Is(err, syscall.EPERM) {
		t.Error(err)
	}
	if left, err := os.ReadDir(store.Dir); err != nil || len(left) != mergedCount {
		t.Error(len(left), err)
	}
	must(t, stack.Release())
}
