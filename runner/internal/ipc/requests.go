package ipc

import (
	"context"
	"sync"
)

// maxEarlyCancels bounds the cancels that are kept for requests to come. Cancels that came after an
// answer are among them.
const maxEarlyCancels = 256

// requestSet is the set of requests that one end of a link and its lanes work on.
type requestSet struct {
	mu           sync.Mutex
	running      map[uint64]context.CancelFunc
	earlyCancels map[uint64]bool // cancelled before the request had arrived on its lane
}

func (s *requestSet) enter(seq uint64) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[seq] = cancel
	if s.earlyCancels[seq] {
		delete(s.earlyCancels, seq)
		cancel()
	}
	return ctx
}

func (s *requestSet) leave(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[seq]; cancel != nil {
		delete(s.running, seq)
		cancel()
	}
}

func (s *requestSet) cancel(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[seq]; cancel != nil {
		cancel()
		return
	}
	if s.earlyCancels == nil || len(s.earlyCancels) >= maxEarlyCancels {
		s.earlyCancels = map[uint64]bool{}
	}
	s.earlyCancels[seq] = true
}

func (s *requestSet) cancelAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.running {
		cancel()
	}
}
