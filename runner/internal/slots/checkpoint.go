package slots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/rootfs"
)

// SlotLayers is a slot whose changes a checkpoint can hold.
type SlotLayers struct{ s *slot }

// Layers returns the layers of a slot, or why a checkpoint cannot hold the slot.
func (m *Manager) Layers(id string) (*SlotLayers, error) {
	s, err := m.slot(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return nil, failure("no_slot", "no slot %q", id)
	case s.setup.View.Layer == "":
		return nil, failure("no_layers", "a checkpoint holds a slot with a root of its own only")
	case s.setup.View.Disk != nil:
		return nil, failure("no_layers", "a checkpoint cannot hold a slot with a limit of its disk")
	}
	return &SlotLayers{s}, nil
}

// LayerStore returns the store of layers of a sandbox, and its image once a slot has a root of its own.
func LayerStore(m *Manager) (*layers.Store, *rootfs.Image, error) {
	m.ownRoot.mu.Lock()
	defer m.ownRoot.mu.Unlock()
	if m.ownRoot.image == nil {
		return nil, nil, failure("no_layers", "no slot of this sandbox has a root of its own yet")
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
// layers.ErrTooLarge.
func (l *SlotLayers) Copy(ctx context.Context, agent *link.Agent, bound layers.Bound) (layers.Stack, error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.check(ctx, agent); err != nil {
		return nil, err
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
	left := bound
	for _, n := range changed { // a copy that is given up costs its time
		size, err := layers.Measure(s.setup.View.Upper(n), left)
		if err == nil {
			err = spend(&left, bound, size)
		}
		if err != nil {
			return nil, err
		}
	}
	layer, err := s.addLayer()
	if err != nil {
		return nil, err
	}
	for _, n := range changed {
		if err := layers.Copy(ctx, s.setup.View.Upper(n), layer.Path(n), bound); err != nil {
			return nil, errors.Join(err, layers.Stack{layer}.Release())
		}
		layer.AddPart(n)
	}
	return s.stack.Use().With(layer), nil
}

// Frozen is the result of a freeze.
type Frozen struct {
	Stack  layers.Stack // the slot's layers, each with one more use
	Killed ipc.Receipt
	Copied bool // a file was open elsewhere
}

// Freeze ends everything in the slot of the agent old, makes its changes a layer and starts a new
// agent, whose commands start in workdir. swap gets the new agent before anyone else does.
func (l *SlotLayers) Freeze(ctx context.Context, old *link.Agent, workdir string, swap func(*link.Agent)) (Frozen,
	error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.check(ctx, old); err != nil {
		return Frozen{}, err
	}
	// What needs room on the disk comes first: nothing has ended yet.
	layer, next, err := l.prepareFreeze()
	if err != nil {
		return Frozen{}, err
	}
	defer func() { _ = os.Remove(next) }() // if it is still there
	ctx = context.WithoutCancel(ctx)       // a freeze is not cancelled halfway
	f := Frozen{Killed: s.end(ctx)}
	if f.Killed.Left > 0 {
		err = fmt.Errorf("%d processes of the slot are left", f.Killed.Left)
	} else {
		err = l.freezeUppers(layer, next)
	}
	if err != nil {
		return f, s.giveUp(errors.Join(err, layers.Stack{layer}.Release()))
	}
	if len(layer.Parts()) == 0 {
		err = layers.Stack{layer}.Release()
	} else {
		s.changeStack(s.stack.With(layer))
		for _, n := range layer.Parts() {
			s.setup.View.Frozen = append(s.setup.View.Frozen, layer.Path(n))
		}
	}
	adopt := func(agent *link.Agent) {
		agent.SetWorkdir(workdir)
		swap(agent)
	}
	_, startErr := s.start(ctx, adopt)
	if startErr != nil && ipc.AsError(startErr).Kind == isolation.InUse {
		f.Copied = true
		if startErr = l.replaceTop(ctx); startErr != nil {
			return f, s.giveUp(startErr)
		}
		_, startErr = s.start(ctx, adopt)
	}
	if err = errors.Join(err, startErr); err != nil {
		return f, err
	}
	f.Stack = s.stack.Use()
	return f, nil
}

// giveUp makes the slot unusable until its reset, because nobody can prove what it holds.
func (s *slot) giveUp(why error) error {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	s.deathError = &ipc.Error{Kind: "unclean", Message: why.Error()}
	return s.deathError
}

// prepareFreeze makes the directories for a new layer and for the slot's further changes.
func (l *SlotLayers) prepareFreeze() (layer *layers.Layer, next string, err error) {
	s := l.s
	if err := checkDepth(s.stack); err != nil {
		return nil, "", err
	}
	next = filepath.Join(s.dir, "next")
	if err := os.Mkdir(next, 0o700); err != nil {
		return nil, "", ipc.OSError("checkpoint", next, err)
	}
	if layer, err = s.addLayer(); err != nil {
		return nil, "", errors.Join(err, os.Remove(next))
	}
	return layer, next, nil
}

// addLayer makes an empty layer with one use.
func (s *slot) addLayer() (*layers.Layer, error) {
	layer, err := s.m.layers.Add()
	if err != nil {
		return nil, ipc.OSError("checkpoint", s.m.layers.Dir, err)
	}
	return layer, nil
}

// freezeUppers moves the changes of an ended slot into a layer, and puts the empty directory next in
// their place.
func (l *SlotLayers) freezeUppers(layer *layers.Layer, next string) error {
	s := l.s
	changed, err := s.setup.View.FindChanges()
	if err != nil {
		return err
	}
	for _, n := range changed {
		if err := os.Rename(s.setup.View.Upper(n), layer.Path(n)); err != nil {
			return err
		}
		layer.AddPart(n)
	}
	waste, err := s.m.trash.Discard(s.setup.View.Layer)
	if err != nil {
		return err
	}
	s.waste = append(s.waste, waste)
	return os.Rename(next, s.setup.View.Layer)
}

// replaceTop replaces the topmost layer, to which somebody can still write, by a copy.
func (l *SlotLayers) replaceTop(ctx context.Context) error {
	s := l.s
	last := len(s.stack) - 1
	open := s.stack[last]
	layer, err := s.addLayer()
	if err != nil {
		return err
	}
	for _, n := range open.Parts() {
		if err := layers.Copy(ctx, open.Path(n), layer.Path(n), layers.Bound{}); err != nil {
			return errors.Join(err, layers.Stack{layer}.Release())
		}
		layer.AddPart(n)
	}
	s.changeStack(s.stack[:last:last].With(layer))
	s.setup.View.Frozen = nil
	return layers.Stack{open}.Release()
}

// checkDepth returns an error if no layer can be added.
func checkDepth(stack layers.Stack) error {
	if len(stack) < layers.MaxStack {
		return nil
	}
	return failure("no_layers", "the slot has %d layers, the most that it can have: continue from an older one",
		layers.MaxStack)
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

// Restore resets the slot and sets it to a stack, of which it takes over a use of each layer.
// Commands then start in workdir.
func (l *SlotLayers) Restore(ctx context.Context, stack layers.Stack, workdir string) (ResetResult, error) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return ResetResult{}, errors.Join(failure("no_slot", "no slot %q", s.id), stack.Release())
	}
	result := s.reset(ctx)
	if !result.Clean {
		return result, stack.Release()
	}
	if err := s.setStack(stack); err != nil {
		return result, err
	}
	_, err := s.start(ctx, func(agent *link.Agent) { agent.SetWorkdir(workdir) })
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
