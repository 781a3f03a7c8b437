package exec

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/sessions"
	"hermes-exec/runner/internal/wire"
)

var errNoCheckpoint = &wire.Error{Kind: "no_checkpoint", Message: "the checkpoint is not known, or was dropped"}

// checkpoint is the state of a slot at one time.
type checkpoint struct {
	id, slot string
	made     chan struct{} // closed when the fields below are final
	err      error         // why there is no checkpoint
	result   checkpointResult
	stack    layers.Stack // one use of each
	fewer    fewerLayers
	sessions sessions.Saved
	holds    string             // directories.HoldsRoot or directories.HoldsDirectories
	layout   directories.Layout // of a slot's directories

	uses int // by the driver until it drops the checkpoint, by slots that begin with it, and by requests
}

// checkpoints holds the checkpoints of all slots.
type checkpoints struct {
	mu     sync.Mutex
	all    map[string]*checkpoint
	begins map[string]*checkpoint // to which a slot returns, by slot
	early  []string               // ids that were dropped before they were made, the newest last
}

// maxEarly bounds the ids that were dropped before they were made: their requests were given up, and
// arrive soon if they do.
const maxEarly = 256

func newCheckpoints() *checkpoints {
	return &checkpoints{all: map[string]*checkpoint{}, begins: map[string]*checkpoint{}}
}

// begin returns the checkpoint with an id, and whether the caller has to make it.
func (s *checkpoints) begin(id, slot string) (cp *checkpoint, isNew bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot != "" && slices.Contains(s.early, id) { // one from another sandbox may arrive again
		return nil, false, channel.ErrCanceled
	}
	if cp = s.all[id]; cp == nil {
		cp = &checkpoint{id: id, slot: slot, holds: directories.HoldsRoot, made: make(chan struct{}), uses: 1}
		s.all[id] = cp
		return cp, true, nil
	}
	if cp.slot != slot {
		return nil, false, channel.BadRequest("checkpoint %q is of the slot %q", id, cp.slot)
	}
	return cp, false, nil
}

// finish publishes a checkpoint, or the reason why there is none.
func (s *checkpoints) finish(cp *checkpoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cp.err = err; err != nil {
		delete(s.all, cp.id)
	}
	close(cp.made)
}

// find returns the checkpoint that a request names once it is made, or nil.
func (s *checkpoints) find(c *channel.Conversation, params json.RawMessage) (*checkpoint, error) {
	var p struct {
		Checkpoint string `json:"checkpoint"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	s.mu.Lock()
	cp := s.all[p.Checkpoint]
	s.mu.Unlock()
	if cp == nil {
		return nil, nil
	}
	select {
	case <-cp.made:
	case <-c.Ctx.Done():
		return nil, channel.ErrCanceled
	}
	if cp.err != nil {
		return nil, nil
	}
	return cp, nil
}

// dropUnknown reports whether there is no checkpoint with an id. Then none is made of a slot later either.
func (s *checkpoints) dropUnknown(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[id] != nil {
		return false
	}
	if !slices.Contains(s.early, id) {
		s.early = append(s.early[max(0, len(s.early)+1-maxEarly):], id)
	}
	return true
}

// isKnown reports whether a checkpoint exists or is being made.
func (s *checkpoints) isKnown(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id] != nil
}

// use returns the checkpoint with an id, or without an id the one with which the slot began, with
// one more use.
func (s *checkpoints) use(slot string, id *string) (*checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == nil {
		cp := s.begins[slot]
		if cp == nil {
			return nil, channel.BadRequest("the slot %q began with no checkpoint", slot)
		}
		cp.uses++
		return cp, nil
	}
	cp := s.all[*id]
	if cp == nil {
		return nil, errNoCheckpoint
	}
	select {
	case <-cp.made:
		cp.uses++
		return cp, nil
	default:
		return nil, channel.BadRequest("checkpoint %q is not made yet", *id)
	}
}

// hold counts a use of a checkpoint that was not dropped meanwhile.
func (s *checkpoints) hold(cp *checkpoint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[cp.id] != cp {
		return false
	}
	cp.uses++
	return true
}

// setBegin sets the checkpoint with which a slot begins, with one more use, and returns the last one,
// whose use the caller ends.
func (s *checkpoints) setBegin(slot string, cp *checkpoint) (last *checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last = s.begins[slot]
	delete(s.begins, slot)
	if cp != nil {
		cp.uses++
		s.begins[slot] = cp
	}
	return last
}

// drop forgets a checkpoint.
func (s *checkpoints) drop(cp *checkpoint) error {
	s.mu.Lock()
	known := s.all[cp.id] == cp
	if known {
		delete(s.all, cp.id)
	}
	s.mu.Unlock()
	if !known {
		return nil
	}
	return s.release(cp)
}

// release ends a use of a checkpoint, which may be nil.
func (s *checkpoints) release(cp *checkpoint) error {
	if cp == nil {
		return nil
	}
	s.mu.Lock()
	cp.uses--
	unused := cp.uses == 0
	s.mu.Unlock()
	if !unused {
		return nil
	}
	cp.sessions.Close()
	return errors.Join(cp.stack.Release(), cp.fewer.stack.Release())
}

// fewerLayers is a stack with the effect of another one that has no room for a further layer.
type fewerLayers struct {
	mu    sync.Mutex
	stack layers.Stack // one use of each; nil: not made yet
}

// startStack returns the layers of a slot that is set to the checkpoint, with one more use of each, and
// with room for further ones. Where they cannot be merged for lack of room, the slot gets all of them.
func (cp *checkpoint) startStack(ctx context.Context) (layers.Stack, error) {
	if len(cp.stack) < layers.MaxStack {
		return cp.stack.Use(), nil
	}
	cp.fewer.mu.Lock()
	defer cp.fewer.mu.Unlock()
	if cp.fewer.stack == nil {
		merged, err := cp.stack.Merge(ctx)
		if ipc.IsShortage(err) {
			return cp.stack.Use(), nil
		}
		if err != nil {
			return nil, err
		}
		cp.fewer.stack = merged
	}
	return cp.fewer.stack.Use(), nil
}
