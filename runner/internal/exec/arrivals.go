package exec

import (
	"errors"
	"sync"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/layers"
)

// arrivals holds the layers of checkpoints that are not complete yet.
type arrivals struct {
	mu  sync.Mutex
	all map[string]*arrival // by the checkpoint's id
}

// arrival is the layers that a checkpoint has received so far.
type arrival struct {
	layers    map[string]*layers.Layer // with one use each, by the driver's names
	parts     map[partID]bool          // whether a directory is complete; otherwise it is being received
	receiving int
	dropped   bool
}

type partID struct {
	layer  string
	number int
}

func newArrivals() *arrivals { return &arrivals{all: map[string]*arrival{}} }

// begin returns the layer for the changes to directory number of the image, or for a copy of the slot's
// directory of this number, if it is owned; nil if it has them. finish must follow, with the result.
func (s *arrivals) begin(store *layers.Store, checkpoint, name string, number int, owned bool) (layer *layers.Layer,
	finish func(complete bool) error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.all[checkpoint]
	if a == nil {
		a = &arrival{layers: map[string]*layers.Layer{}, parts: map[partID]bool{}}
	}
	layer = a.layers[name]
	if layer != nil && owned != (layer.Owner != nil) {
		return nil, nil, channel.BadRequest("layer %q has changes to the root and directories of a slot", name)
	}
	part := partID{name, number}
	switch complete, exists := a.parts[part]; {
	case complete:
		return nil, nil, nil
	case exists:
		return nil, nil, channel.BadRequest("layer %q is being received already", name)
	}
	if layer == nil {
		if len(a.layers) == layers.MaxStack {
			return nil, nil, channel.BadRequest("checkpoint %q has %d layers already", checkpoint, layers.MaxStack)
		}
		if layer, err = store.Add(); err != nil {
			return nil, nil, ipc.OSError("checkpoint", store.Dir, err)
		}
		if owned {
			owner := layers.RunnerOwner()
			layer.Owner = &owner
		}
		a.layers[name] = layer
	}
	s.all[checkpoint], a.parts[part] = a, false
	a.receiving++
	return layer, func(complete bool) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		a.receiving--
		if complete {
			a.parts[part] = true
			layer.AddPart(number)
		} else {
			delete(a.parts, part)
		}
		if a.dropped && a.receiving == 0 {
			return a.release()
		}
		return nil
	}, nil
}

// use returns a layer that was received for a checkpoint, with one more use, or nil.
func (s *arrivals) use(checkpoint, name string) *layers.Layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.all[checkpoint]
	if a == nil || a.receiving > 0 || a.layers[name] == nil {
		return nil
	}
	a.layers[name].Complete()
	return layers.Stack{a.layers[name]}.Use()[0]
}

// drop forgets what was received for a checkpoint: nobody else uses it, or it is received in vain.
func (s *arrivals) drop(checkpoint string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.all[checkpoint]
	if a == nil {
		return nil
	}
	delete(s.all, checkpoint)
	if a.dropped = true; a.receiving > 0 {
		return nil
	}
	return a.release()
}

func (a *arrival) release() error {
	var problems []error
	for _, layer := range a.layers {
		problems = append(problems, layers.Stack{layer}.Release())
	}
	return errors.Join(problems...)
}
