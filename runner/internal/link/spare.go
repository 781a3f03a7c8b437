package link

import (
	"os"
	"sync"

	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/rootfs"
)

// Spare keeps at most one agent that was started ahead. It waits in namespaces of its own, and gets
// everything of a slot with its Setup.
//
// Not the obvious code: see docs/why-not-obvious.md ("An agent in advance").
type Spare struct {
	// NewOwner returns a user for whom the kernel counts nothing yet.
	NewOwner func() (uint32, error)

	mu      sync.Mutex
	kind    spareKind
	waiting *Waiting
	owner   uint32 // of the user namespace of this and of the next spare agent; 0 before the first
	closed  bool
}

// spareKind is what agents that may take each other's place have in common.
type spareKind struct {
	method          isolation.Method
	network, scoped bool
	owned           bool // its user namespace belongs to a user of its own
}

// kind returns the kind of the agents of a slot. ok is false if the start of an agent depends on more.
func (p Config) kind() (kind spareKind, ok bool) {
	s := p.Setup
	// A sweep of a tenant that is root beside the runner takes everything of root for the tenant's.
	isRoot := s.Switch && s.UID == 0 && !s.View.Pids
	ok = p.Method != isolation.MethodBwrap && p.Domain.Files == nil && !s.Successor && !isRoot &&
		s.Level != isolation.Exclusive
	return spareKind{p.Method, s.View.Network, p.Domain.Scoped,
		p.Method == isolation.MethodIdentity && s.CountingUID != 0}, ok
}

// Take returns the spare agent, nil if there is none for plan. A slot whose user namespace has an owner
// gets the owner of the spare agent's, and the next spare agent gets the slot's.
func (s *Spare) Take(plan *Config) *Waiting {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, ok := plan.kind()
	if !ok || s.waiting == nil || kind != s.kind || !s.waiting.isAlive() {
		return nil
	}
	w := s.waiting
	s.waiting = nil
	if kind.owned {
		s.owner, plan.Setup.CountingUID = plan.Setup.CountingUID, s.owner
	}
	return w
}

// Prepare starts an agent for the next slot that is like the slot of plan. It does not wait for it, and
// without room for it there is none.
func (s *Spare) Prepare(plan Config) {
	kind, ok := plan.kind()
	if !ok {
		return
	}
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed || s.waiting != nil && s.kind == kind && s.waiting.isAlive() {
			return
		}
		s.end()
		var err error
		if kind.owned && s.owner == 0 {
			if s.owner, err = s.NewOwner(); err != nil {
				return
			}
		}
		ahead := Config{Method: plan.Method, Domain: plan.Domain, Exe: plan.Exe, Setup: isolation.Setup{
			CountingUID: s.owner, View: rootfs.View{Network: kind.network}}}
		if s.waiting, err = launch(ahead); err != nil {
			s.waiting = nil
		}
		s.kind = kind
	}()
}

// Close ends the spare agent. There will be no other.
func (s *Spare) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.end()
}

// end must be called with mu held.
func (s *Spare) end() {
	if s.waiting == nil {
		return
	}
	s.waiting.conn.Close()
	_ = s.waiting.process.Signal(os.Kill)
	<-s.waiting.ended
	s.waiting = nil
}

func (w *Waiting) isAlive() bool {
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}
