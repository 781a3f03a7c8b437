package layers

import (
	"errors"
	"os"
	"testing"
)

// finish fills a layer with a file of n bytes.
func finish(t *testing.T, l *Layer, n int) *Layer {
	t.Helper()
	if err := errors.Join(os.Mkdir(l.Path(0), 0o700), os.WriteFile(l.Path(0)+"/file", make([]byte, n), 0o600)); err != nil {
		t.Fatal(err)
	}
	l.AddPart(0)
	l.Complete()
	return l
}

func TestStoreRefusesALayerBeyondItsLimit(t *testing.T) {
	store := NewStore(t.TempDir()+"/layers", os.RemoveAll)
	frozen, err := store.Add() // it is measured when a limit matters
	if err != nil {
		t.Fatal(err)
	}
	finish(t, frozen, 4096)
	first, err := store.Reserve(Size{Entries: 1, Bytes: 4096}, 8192)
	if err != nil {
		t.Fatal(err)
	}
	finish(t, first, 4096)
	_, err = store.Reserve(Size{Entries: 1, Bytes: 1}, 8192)
	if full := new(FullError); !errors.As(err, &full) || full.Bytes != 8193 || full.Limit != 8192 || full.Dir != store.Dir {
		t.Error(err)
	}
	if left, err := os.ReadDir(store.Dir); err != nil || len(left) != 2 {
		t.Error(left, err)
	}
	if total := store.Total(); total != (Size{2, 8192}) {
		t.Error(total)
	}
	more := Stack{frozen}.Use()
	if err := errors.Join(more.Release(), Stack{first}.Release()); err != nil {
		t.Fatal(err)
	}
	if total := store.Total(); total != (Size{1, 4096}) {
		t.Error(total)
	}
	if _, err = store.Reserve(Size{Entries: 1, Bytes: 4096}, 8192); err != nil {
		t.Error(err)
	}
}

// A layer that is released while, or before, it is measured counts nothing.
func TestStoreCountsNoReleasedLayer(t *testing.T) {
	store := NewStore(t.TempDir()+"/layers", os.RemoveAll)
	for range 50 {
		layer, err := store.Add()
		if err != nil {
			t.Fatal(err)
		}
		finish(t, layer, 100)
		store.Total()
		if err := (Stack{layer}).Release(); err != nil {
			t.Fatal(err)
		}
	}
	store.measure()
	if total := store.Total(); total != (Size{}) || len(store.unmeasured) > 0 {
		t.Error(total, store.unmeasured)
	}
}

func TestReleaseContinuesAfterAnError(t *testing.T) {
	var discarded []string
	store := NewStore(t.TempDir()+"/layers", func(path string) error {
		discarded = append(discarded, path)
		return errors.New("not now")
	})
	var stack Stack
	var want []string
	for range 3 {
		layer, err := store.Add()
		if err != nil {
			t.Fatal(err)
		}
		stack, want = stack.With(layer), append(want, layer.Dir())
	}
	if err := stack.Release(); err == nil || len(discarded) != len(want) {
		t.Errorf("%v: %q instead of %q", err, discarded, want)
	}
}
