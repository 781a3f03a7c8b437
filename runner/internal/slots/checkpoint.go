package slots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/rootfs"
)

// SlotLayers is a slot whose changes a checkpoint can hold.
type SlotLayers struct {
	s     *slot
	holds string // directories.HoldsRoot or directories.HoldsDirectories
}

// Layers returns the layers of a slot for checkpoints that hold its root or its directories, or why
// there can be none.
func (m *Manager) Layers(id, holds string) (*SlotLayers, error) {
	s, err := m.slot(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, failure("no_slot", "no slot %q", id)
	}
	if err := directories.Check(&s.setup, holds); err != nil {
		return nil, err
	}
	return &SlotLayers{s, holds}, nil
}

// LayerStore returns the store of layers of a sandbox, and its image once a slot has a root of its own;
// before that an error.
func LayerStore(m *Manager) (*layers.Store, *rootfs.Image, error) {
	m.ownRoot.mu.Lock()
	defer m.ownRoot.mu.Unlock()
	if m.ownRoot.image == nil {
		return m.layers, nil, failure("no_layers", "no slot of this sandbox has a root of its own yet")
	}
	return m.layers, m.ownRoot.image, nil
}

// check returns why nothing may be done for a call: it was cancelled, or agent is no longer the
// slot's, because the slot was reset or destroyed while the call waited for mu.
func (l *SlotLayers) check(ctx context.Context, agent *link.Agent) error {
	running, died := l.s.current()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case died != nil:
		return died
	case running != agent:
		return failure("slot_closed", "the slot was reset or destroyed before its checkpoint")
	}
	return nil
}

// Copy copies the changes of the agent's slot into a new layer, and returns the slot's layers with it
// on top, each with one more use. Without changes there is no new layer. Beyond the bound the error is
// layers.ErrTooLarge. All layers of the sandbox together may have limit bytes; 0 for no limit. The layer
// of a slot's directories is the only one, and has no bound.
func (l *SlotLayers) Copy(ctx context.Context, agent *link.Agent, bound layers.Bound, limit int64) (layers.Stack,
	error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.check(ctx, agent); err != nil {
		return nil, err
	}
	if l.holds == directories.HoldsDirectories {
		layer, err := directoriesOf(s).Copy(ctx, s.m.layers, limit)
		if err != nil {
			return nil, err
		}
		return layers.Stack{layer}, nil
	}
	changed, err := s.setup.View.FindChanges()
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if len(changed) == 0 {
		return s.stack.Use(), nil
	}
	if err := checkDepth(s.stack); err != nil {
		return nil, err
	}
	size, err := measure(s.setup.View, changed, bound) // a copy that is given up costs its time
	if err != nil {
		return nil, err
	}
	layer, err := s.m.layers.Reserve(size, limit)
	if err != nil {
		return nil, roomError(s.m.layers, err)
	}
	for _, n := range changed {
		if err := layers.Copy(ctx, s.setup.View.Upper(n), layer.Path(n), bound); err != nil {
			return nil, errors.Join(err, layers.Stack{layer}.Release())
		}
		layer.AddPart(n)
	}
	layer.Complete()
	return s.stack.Use().With(layer), nil
}

// Freeze is a freeze that is prepared: it needs no more room on the disk.
type Freeze struct {
	l     *SlotLayers
	agent *link.Agent
	base  layers.Stack // the slot's layers, or fewer with the same effect; one use of each
	layer *layers.Layer
	next  string // the directory of the slot's further changes
}

// PrepareFreeze makes the directories of a freeze, while nothing has ended yet. With a limit it measures
// the slot's changes, whose processes must be stopped: all layers of the sandbox together may have limit
// bytes. Run or Discard must follow.
func (l *SlotLayers) PrepareFreeze(ctx context.Context, agent *link.Agent, limit int64) (*Freeze, error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.check(ctx, agent); err != nil {
		return nil, err
	}
	f := &Freeze{l: l, agent: agent, next: filepath.Join(s.dir, "next")}
	const each, more = 4, 64 // directories that the new agent makes, for each one of the image
	err := diskspace.CheckFiles(s.dir, len(s.setup.View.Image.Directories)*each+more)
	if err == nil {
		err = os.Mkdir(f.next, 0o700)
	}
	if err != nil {
		return nil, ipc.OSError("checkpoint", f.next, err)
	}
	if len(s.stack)+1 < layers.MaxStack {
		f.base = s.stack.Use()
	} else if f.base, err = s.stack.Merge(ctx); err != nil { // the slot goes on above the new layer
		return nil, errors.Join(roomError(s.m.layers, err), os.Remove(f.next))
	}
	if f.layer, err = s.reserve(limit); err != nil {
		return nil, errors.Join(roomError(s.m.layers, err), os.Remove(f.next), f.base.Release())
	}
	return f, nil
}

// reserve makes an empty layer for all changes of the slot.
func (s *slot) reserve(limit int64) (*layers.Layer, error) {
	if limit == 0 {
		return s.m.layers.Add()
	}
	changed, err := s.setup.View.FindChanges()
	if err != nil {
		return nil, err
	}
	size, err := measure(s.setup.View, changed, layers.Bound{})
	if err != nil {
		return nil, err
	}
	return s.m.layers.Reserve(size, limit)
}

// Discard removes what a freeze that does not take place has made.
func (f *Freeze) Discard() error {
	s := f.l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.discard()
}

func (f *Freeze) discard() error {
	_ = os.Remove(f.next) // a reset has removed it
	return f.base.With(f.layer).Release()
}

// Frozen is the result of a freeze.
type Frozen struct {
	Stack  layers.Stack // the slot's layers, each with one more use
	Killed ipc.Receipt
	Copied bool // a file was open elsewhere
}

// Run ends everything in the slot, makes its changes a layer and starts a new agent, whose commands
// start in workdir. swap gets the new agent before anyone else does.
func (f *Freeze) Run(ctx context.Context, workdir string, swap func(*link.Agent)) (Frozen, error) {
	s := f.l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f.l.check(ctx, f.agent); err != nil {
		return Frozen{}, errors.Join(err, f.discard())
	}
	ctx = context.WithoutCancel(ctx) // a freeze is not cancelled halfway
	result := Frozen{Killed: s.end(ctx)}
	var err error
	if result.Killed.Left > 0 {
		err = fmt.Errorf("%d processes of the slot are left", result.Killed.Left)
	} else {
		err = f.moveUppers()
	}
	if err != nil {
		return result, s.giveUp(errors.Join(err, f.discard()))
	}
	if len(f.layer.Parts()) == 0 {
		err = f.discard()
	} else {
		before := s.stack
		s.changeStack(f.base.With(f.layer))
		err = before.Release()
		for _, n := range f.layer.Parts() {
			s.setup.View.Frozen = append(s.setup.View.Frozen, f.layer.Path(n))
		}
	}
	adopt := func(agent *link.Agent) {
		agent.SetWorkdir(workdir)
		swap(agent)
	}
	_, startErr := s.start(ctx, adopt)
	if startErr != nil && ipc.AsError(startErr).Kind == isolation.InUse {
		result.Copied = true
		if startErr = f.l.replaceTop(ctx); startErr != nil {
			return result, s.giveUp(startErr)
		}
		_, startErr = s.start(ctx, adopt)
	}
	if err = errors.Join(err, startErr); err != nil {
		return result, err
	}
	result.Stack = s.stack.Use()
	return result, nil
}

// giveUp makes the slot unusable until its reset, because nobody can prove what it holds.
func (s *slot) giveUp(why error) error {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	s.deathError = &ipc.Error{Kind: "unclean", Message: why.Error()}
	return s.deathError
}

// measure returns the size of a slot's changes to these directories of the image.
func measure(view rootfs.View, changed []int, bound layers.Bound) (total layers.Size, err error) {
	left := bound
	for _, n := range changed {
		size, err := layers.Measure(view.Upper(n), left)
		if err == nil {
			err = spend(&left, bound, size)
		}
		if err != nil {
			return total, err
		}
		total = total.Plus(size)
	}
	return total, nil
}

// roomError is the error for a layer that cannot be made.
func roomError(store *layers.Store, err error) error {
	if full := new(layers.FullError); errors.As(err, &full) {
		return err
	}
	return ipc.OSError("checkpoint", store.Dir, err)
}

// moveUppers moves the changes of an ended slot into the layer, and puts an empty directory in their
// place.
func (f *Freeze) moveUppers() error {
	s := f.l.s
	changed, err := s.setup.View.FindChanges()
	if err != nil {
		return err
	}
	for _, n := range changed {
		if err := os.Rename(s.setup.View.Upper(n), f.layer.Path(n)); err != nil {
			return err
		}
		f.layer.AddPart(n)
	}
	f.layer.Complete()
	waste, err := s.m.trash.Discard(s.setup.View.Layer)
	if err != nil {
		return err
	}
	s.waste = append(s.waste, waste)
	return os.Rename(f.next, s.setup.View.Layer)
}

// replaceTop replaces the topmost layer, to which somebody can still write, by a copy.
func (l *SlotLayers) replaceTop(ctx context.Context) error {
	s := l.s
	last := len(s.stack) - 1
	open := s.stack[last]
	layer, err := s.m.layers.Add()
	if err != nil {
		return err
	}
	for _, n := range open.Parts() {
		if err := layers.Copy(ctx, open.Path(n), layer.Path(n), layers.Bound{}); err != nil {
			return errors.Join(err, layers.Stack{layer}.Release())
		}
		layer.AddPart(n)
	}
	layer.Complete()
	s.changeStack(s.stack[:last:last].With(layer))
	s.setup.View.Frozen = nil
	return layers.Stack{open}.Release()
}

// checkDepth returns an error if no layer can be added.
func checkDepth(stack layers.Stack) error {
	if len(stack) < layers.MaxStack {
		return nil
	}
	return failure("no_layers", "the slot has %d layers, and the disk had no room to merge them: make room, and "+
		"restore it again", layers.MaxStack)
}

// spend subtracts a size from what is left of a bound.
func spend(left *layers.Bound, bound layers.Bound, size layers.Size) error {
	if bound.Entries > 0 {
		if left.Entries -= size.Entries; left.Entries <= 0 {
			return layers.ErrTooLarge
		}
	}
	if bound.Bytes > 0 {
		if left.Bytes -= size.Bytes; left.Bytes <= 0 {
			return layers.ErrTooLarge
		}
	}
	return nil
}

// Restore resets the slot, unless nobody has used it, and sets it to a stack, of which it takes over a
// use of each layer. adopt gets the new agent before anyone else does.
func (l *SlotLayers) Restore(ctx context.Context, stack layers.Stack, adopt func(*link.Agent)) (ResetResult, error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return ResetResult{}, errors.Join(failure("no_slot", "no slot %q", s.id), stack.Release())
	}
	if l.holds == directories.HoldsDirectories {
		if err := directoriesOf(s).CheckMountPoints(stack[0]); err != nil {
			return ResetResult{}, errors.Join(err, stack.Release())
		}
	}
	result := ResetResult{Clean: true, UID: s.facts.UID, GID: s.facts.GID, Differences: []string{},
		Killed: ipc.Receipt{Handles: []string{}}}
	if !s.unused {
		result = s.reset(ctx)
	}
	if !result.Clean {
		return result, stack.Release()
	}
	var err error
	if l.holds == directories.HoldsDirectories {
		err = errors.Join(setDirectories(ctx, s, stack[0]), stack.Release())
	} else {
		err = s.setStack(stack)
	}
	if err != nil {
		return result, err
	}
	_, err = s.start(ctx, adopt)
	return result, err
}

// setStack sets the layers below the slot, which takes over a use of each.
func (s *slot) setStack(stack layers.Stack) error {
	before := s.stack
	s.changeStack(stack)
	s.setup.View.Frozen = nil
	return before.Release()
}

func (s *slot) changeStack(stack layers.Stack) {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	s.stack, s.setup.View.Stack = stack, viewStack(stack)
}

// ownPaths returns the directories with the slot's files. Files in its layers that are older than
// its last reset are those of a checkpoint.
func (s *slot) ownPaths() []string {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	paths := writablePaths(s.setup.Level, s.dir)
	for _, layer := range s.stack {
		paths = append(paths, layer.Dir())
	}
	return paths
}

func viewStack(stack layers.Stack) []rootfs.Layer {
	view := make([]rootfs.Layer, len(stack))
	for i, l := range stack {
		view[i] = rootfs.Layer{ID: l.ID, Parts: l.Parts()}
	}
	return view
}

// newLayerStore returns the store of a sandbox with its runner's directory.
func newLayerStore(m *Manager) *layers.Store {
	return layers.NewStore(filepath.Join(m.base, "layers"), func(path string) error {
		_, err := m.trash.Discard(path)
		return err
	})
}

// LayersSize returns the size of the layers of all checkpoints and slots, without those that are not
// measured yet.
func LayersSize(m *Manager) layers.Size { return m.layers.Total() }
