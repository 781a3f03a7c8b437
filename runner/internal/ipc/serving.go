package ipc

import (
	"context"
	"sync"
)

// mostEarly bounds the cancels that are kept for requests to come; those that
// came after an answer are among them.
const mostEarly = 256

// serving is the set of requests that one end of a link and its lanes work on.
type serving struct {
	mu      sync.Mutex
	running map[uint64]context.CancelFunc
	early   map[uint64]bool // canceled before the request had come by its lane
}

func (s *serving) enter(seq uint64) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[seq] = cancel
	if s.early[seq] {
		delete(s.early, seq)
		cancel()
	}
	return ctx
}

func (s *serving) leave(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[seq]; cancel != nil {
		delete(s.running, seq)
		cancel()
	}
}

func (s *serving) cancel(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[seq]; cancel != nil {
		cancel()
		return
	}
	if s.early == nil || len(s.early) >= mostEarly {
		s.early = map[uint64]bool{}
	}
	s.early[seq] = true
}

func (s *serving) cancelAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.running {
		cancel()
	}
}
