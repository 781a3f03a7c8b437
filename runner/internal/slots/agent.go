package slots

import (
	"context"
	"path/filepath"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/link"
)

// setupTimeout is how long an agent may take to get ready: usually some milliseconds, and a
// thousand times that in a sandbox with a small share of the processors. The driver gives a slot 60
// s.
const setupTimeout = 45 * time.Second

// agent returns the running agent or starts one. An agent that died is not replaced before the slot
// is reset.
func (s *slot) agent(ctx context.Context) (*link.Agent, error) {
	if h, _ := s.current(); h != nil {
		return h, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, failure("no_slot", "no slot %q", s.id)
	}
	h, died := s.current()
	switch {
	case h != nil:
		return h, nil
	case died != nil:
		return nil, died
	}
	return s.start(ctx, nil)
}

// current returns the running agent, or why the last one ended unexpectedly, or neither.
func (s *slot) current() (*link.Agent, *ipc.Error) {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	return s.running, s.deathError
}

// start makes a new agent the slot's, once prepare, which may be nil, has got it. mu must be held.
func (s *slot) start(ctx context.Context, prepare func(*link.Agent)) (*link.Agent, error) {
	h, again, err := s.launch(ctx)
	if again {
		h, _, err = s.launch(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.setup.View.Frozen = nil // it was proven closed
	if prepare != nil {
		prepare(h)
	}
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	if died := h.EndError(); died != nil {
		return nil, died
	}
	s.running, s.deathError = h, nil
	return h, nil
}

// launch starts an agent that the slot does not use yet. again means that the caller may try once
// more.
func (s *slot) launch(ctx context.Context) (h *link.Agent, again bool, err error) {
	s.unused = false
	if s.setup.View.Layer != "" {
		if err := s.freshLayer(); err != nil {
			return nil, false, failure(link.Refusal(err), "the slot's layer cannot be made: %v", err)
		}
	}
	if err := s.newDisk(); err != nil {
		return nil, false, err
	}
	plan := link.Config{
		Setup: s.setup, Method: s.method, Domain: s.domain(), Exe: s.m.exe, Bwrap: s.m.facts.BwrapPath,
		Limit: s.m.setupTimeout, Env: s.env, Shells: s.facts.Shells, Workspace: string(s.facts.Workspace),
		FIFOs: s.fifoDir(), Relief: &s.relief, Detach: s.detach,
		OnExit:  func(e ipc.Exit) { s.m.onExit(s.id, e) },
		OnDeath: func(why *ipc.Error) { s.m.onDeath(s.id, why) },
	}
	if s.disk != nil {
		plan.Disk = s.disk.Mount
	}
	if s.facts.Shell != nil {
		plan.Shell = s.facts.Shells[*s.facts.Shell]
	}
	waiting := s.m.spare.Take(&plan)
	s.setup.CountingUID = plan.Setup.CountingUID
	if waiting != nil {
		s.m.spare.Prepare(plan) // beside the set-up, so that it is there when a holder soon follows another
	}
	h, again, err = link.Start(ctx, plan, waiting)
	if err == nil && waiting == nil {
		s.m.spare.Prepare(plan)
	}
	return h, again, err
}

func (s *slot) fifoDir() link.FIFOs {
	return link.FIFOs{Dir: filepath.Join(s.dir, fifoDirName), Inside: s.fifos}
}

// detach forgets an agent that has ended, and reports whether it was the slot's.
func (s *slot) detach(h *link.Agent) bool {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	if s.running != h {
		return false
	}
	s.running = nil
	if !h.IsStopRequested() {
		s.deathError = h.DeathError()
	}
	return true
}
