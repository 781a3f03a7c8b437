package layers

import (
	"errors"
	"testing"
)

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
