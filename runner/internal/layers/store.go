package layers

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"hermes-exec/runner/internal/disk"
)

// MaxStack is the largest number of layers below a slot. A lookup of a missing name visits each of
// them, and the options of a mount with 500 fill a page.
const MaxStack = 200

// Store is the directory of a sandbox's frozen and copied layers. No tenant can reach it. A layer is
// discarded when nobody uses it.
type Store struct {
	Dir     string
	discard func(path string) error // removes a directory of the store

	mu         sync.Mutex
	next       int
	total      Size  // of the layers in use that are measured
	arriving   int64 // bytes that layers have taken before they are measured
	unmeasured map[*Layer]struct{}
	measuring  bool              // in the background
	all        map[string]*Layer // in use, by id
}

// FullError is the error for a layer with which a store would exceed its limit.
type FullError struct {
	Dir          string
	Bytes, Limit int64 // with the layer, and at most
}

func (e *FullError) Error() string {
	const mib = 1 << 20
	return fmt.Sprintf("the checkpoints of the sandbox would have %.1f MiB, and at most %.1f are allowed",
		float64(e.Bytes)/mib, float64(e.Limit)/mib)
}

// NewStore returns a Store in dir, which it makes with the first layer. discard removes the
// directory of a layer, however long that takes.
func NewStore(dir string, discard func(path string) error) *Store {
	return &Store{Dir: dir, discard: discard, unmeasured: map[*Layer]struct{}{}, all: map[string]*Layer{}}
}

// Layer is the changes of a slot to some directories of the sandbox's image, or a copy of the slot's own
// directories.
type Layer struct {
	ID    string // the name of its directory in the store
	store *Store

	// Of a copy of directories: the owner of their files (otherwise nil), and the first entries that it
	// lacks, with the reasons. Set before the layer is shared.
	Owner   *Owner
	LeftOut []string

	parts []int // numbers of the directories that it changes, ascending

	measured sync.Once
	size     Size
	err      error

	// Guarded by store.mu.
	uses     int // by slots and checkpoints
	complete bool
	counted  bool // size is part of store.total
	taken    int64
}

// Add makes an empty layer with one use. It is measured later.
func (s *Store) Add() (*Layer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add()
}

// Reserve makes an empty layer for changes of a known size, with one use. If all layers would then have
// more than limit bytes (0: no limit), the error is a FullError.
func (s *Store) Reserve(size Size, limit int64) (*Layer, error) {
	if limit > 0 {
		s.measure()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes := s.total.Bytes + size.Bytes; limit > 0 && bytes > limit {
		return nil, &FullError{Dir: s.Dir, Bytes: bytes, Limit: limit}
	}
	l, err := s.add()
	if err != nil {
		return nil, err
	}
	l.measured.Do(func() { l.size = size })
	l.count()
	return l, nil
}

// add must be called with mu held.
func (s *Store) add() (*Layer, error) {
	if s.next == 0 {
		if err := os.MkdirAll(s.Dir, 0o700); err != nil {
			return nil, err
		}
		disk.Spread(s.Dir)
	}
	s.next++
	l := &Layer{ID: strconv.Itoa(s.next), store: s, uses: 1}
	if err := os.Mkdir(filepath.Join(s.Dir, l.ID), 0o700); err != nil {
		return nil, err
	}
	s.all[l.ID] = l
	return l, nil
}

// Use returns the layer with an id with one more use, or nil if nobody uses it.
func (s *Store) Use(id string) *Layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.all[id]
	if l != nil {
		l.uses++
	}
	return l
}

// CheckLimit returns a FullError if all complete layers have more than limit bytes; 0 is no limit.
func (s *Store) CheckLimit(limit int64) error {
	if limit == 0 {
		return nil
	}
	s.measure()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total.Bytes > limit {
		return &FullError{Dir: s.Dir, Bytes: s.total.Bytes, Limit: limit}
	}
	return nil
}

// Take counts bytes that are about to be written to a layer that is not complete. If all layers would
// then have more than limit bytes (0: no limit), the error is a FullError.
func (l *Layer) Take(bytes, limit int64) error {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.total.Bytes + s.arriving + bytes; limit > 0 && all > limit {
		return &FullError{Dir: s.Dir, Bytes: all, Limit: limit}
	}
	l.taken += bytes
	s.arriving += bytes
	return nil
}

// Total returns the size of the layers that are measured, and measures the others in the background.
func (s *Store) Total() Size {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unmeasured) > 0 && !s.measuring {
		s.measuring = true
		go func() {
			s.measure()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.measuring = false
		}()
	}
	return s.total
}

// measure measures all layers that are not.
func (s *Store) measure() {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.unmeasured))
	s.mu.Unlock()
	for _, l := range all {
		_, _ = l.Size() // a layer that nobody uses any longer may be gone
	}
}

// Dir returns the directory of the layer.
func (l *Layer) Dir() string { return filepath.Join(l.store.Dir, l.ID) }

// Path returns the path of the changes to directory n.
func (l *Layer) Path(n int) string { return filepath.Join(l.Dir(), strconv.Itoa(n)) }

// AddPart records that the layer changes directory n.
func (l *Layer) AddPart(n int) {
	l.parts = append(l.parts, n)
	slices.Sort(l.parts)
}

// Complete records that nothing more is added to the layer: now it can be measured.
func (l *Layer) Complete() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if !l.complete && !l.counted {
		l.store.unmeasured[l] = struct{}{}
	}
	l.complete = true
}

// Parts returns the numbers of the directories that the layer changes, ascending.
func (l *Layer) Parts() []int { return l.parts }

// Size measures the layer, once.
func (l *Layer) Size() (Size, error) {
	l.measured.Do(func() {
		for _, n := range l.parts {
			size, err := Measure(l.Path(n), Bound{})
			if err != nil {
				l.err = fmt.Errorf("layer %s: %w", l.ID, err)
				break
			}
			l.size = l.size.Plus(size)
		}
		l.store.mu.Lock()
		defer l.store.mu.Unlock()
		delete(l.store.unmeasured, l)
		if l.uses > 0 {
			l.count()
		}
	})
	return l.size, l.err
}

// count must be called with store.mu held.
func (l *Layer) count() {
	l.counted, l.store.total = true, l.store.total.Plus(l.size)
	l.settle()
}

// settle ends the count of taken bytes. It must be called with store.mu held.
func (l *Layer) settle() {
	l.store.arriving -= l.taken
	l.taken = 0
}

// Stack is the layers below a slot, the oldest first.
type Stack []*Layer

// IDs returns the ids of the layers.
func (s Stack) IDs() []string {
	ids := make([]string, len(s))
	for i, l := range s {
		ids[i] = l.ID
	}
	return ids
}

// With returns a stack with one more layer on top. Both stacks stay usable.
func (s Stack) With(l *Layer) Stack { return append(slices.Clone(s), l) }

// Use counts one more use of each layer. Each of them must be in use.
func (s Stack) Use() Stack {
	for _, l := range s {
		l.store.mu.Lock()
		l.uses++
		l.store.mu.Unlock()
	}
	return s
}

// Release ends one use of each layer and discards layers without any, all of them even after an error.
func (s Stack) Release() error {
	var problems []error
	for _, l := range s {
		l.store.mu.Lock()
		l.uses--
		unused := l.uses == 0
		if unused {
			delete(l.store.all, l.ID)
			l.forget()
		}
		l.store.mu.Unlock()
		if unused {
			if err := l.store.discard(l.Dir()); err != nil {
				problems = append(problems, fmt.Errorf("layer %s: %w", l.ID, err))
			}
		}
	}
	return errors.Join(problems...)
}

// forget must be called with store.mu held.
func (l *Layer) forget() {
	delete(l.store.unmeasured, l)
	l.settle()
	if l.counted {
		l.store.total.Entries -= l.size.Entries
		l.store.total.Bytes -= l.size.Bytes
	}
}
