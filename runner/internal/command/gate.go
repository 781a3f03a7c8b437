package command

import (
	"context"
	"sync"

	"hermes-exec/runner/internal/wire"
)

// gate counts the calls under way in a slot, and holds new calls back while a checkpoint is made.
type gate struct {
	mu    sync.Mutex
	calls int
	links map[*connection]struct{}
	open  chan struct{} // closed at the end of the hold; nil without one
}

// connection is a connection or a listener of the slot.
type connection struct{ end context.CancelCauseFunc }

// errCheckpointed is the error of connections that end with the processes of a checkpoint.
var errCheckpointed = &wire.Error{Kind: "slot_closed",
	Message: "a checkpoint ended the slot's processes and connections"}

// Enter counts a call that can change the slot. It waits for the end of a hold. leave must follow.
func (s *Scope) Enter(ctx context.Context) (leave func(), err error) {
	err = s.enter(ctx, func() { s.gate.calls++ })
	return func() {
		s.gate.mu.Lock()
		s.gate.calls--
		s.gate.mu.Unlock()
	}, err
}

// EnterConnection counts a connection or listener, and returns a context that ends with ctx, with the
// scope and at EndConnections. leave must follow.
func (s *Scope) EnterConnection(ctx context.Context) (joined context.Context, leave func(), err error) {
	joined, done := s.Join(ctx)
	joined, cancel := context.WithCancelCause(joined)
	link := &connection{end: cancel}
	err = s.enter(ctx, func() {
		if s.gate.links == nil {
			s.gate.links = map[*connection]struct{}{}
		}
		s.gate.links[link] = struct{}{}
	})
	return joined, func() {
		s.gate.mu.Lock()
		delete(s.gate.links, link)
		s.gate.mu.Unlock()
		cancel(context.Canceled)
		done()
	}, err
}

// enter calls count outside of a hold.
func (s *Scope) enter(ctx context.Context, count func()) error {
	for {
		s.gate.mu.Lock()
		open := s.gate.open
		if open == nil {
			count()
			s.gate.mu.Unlock()
			return nil
		}
		s.gate.mu.Unlock()
		select {
		case <-open:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return s.Err()
		}
	}
}

// Hold holds new calls back until release, after the end of another hold. With calls under way it
// does not, and release is nil.
func (s *Scope) Hold(ctx context.Context) (release func(), calls, connections int, err error) {
	open := make(chan struct{})
	err = s.enter(ctx, func() {
		if calls, connections = s.gate.calls, len(s.gate.links); calls == 0 {
			s.gate.open = open
		}
	})
	if err != nil || calls > 0 {
		return nil, calls, connections, err
	}
	return func() {
		s.gate.mu.Lock()
		defer s.gate.mu.Unlock()
		s.gate.open = nil
		close(open)
	}, 0, connections, nil
}

// EndConnections ends all connections and listeners of the slot.
func (s *Scope) EndConnections() {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	for link := range s.gate.links {
		link.end(errCheckpointed)
	}
}
