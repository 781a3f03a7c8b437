package channel

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/wire"
)

// tokenSize is that of the words by which an offered Stdio is found.
const tokenSize = 32

// Stdio is the input and output of a process that is to be started, which
// `runner attach` has handed over: that one ends with it.
type Stdio struct {
	FDs      []int
	attached *net.UnixConn
	taken    func()
	once     sync.Once
}

// Started lets go of our copies of the descriptors, and of what has handed them
// over once the process has ended, or its slot. Harmless without one.
func (s *Stdio) Started(slot context.Context, ended <-chan struct{}) {
	if s == nil {
		return
	}
	pipe.CloseFDs(s.FDs)
	s.FDs = nil
	go func() {
		defer s.Close()
		select {
		case <-ended:
		case <-slot.Done():
		}
	}()
}

// Close lets go of all of it. Harmless without one, and when repeated.
func (s *Stdio) Close() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		pipe.CloseFDs(s.FDs)
		_ = s.attached.Close()
	})
}

// stdioOf is where one is handed over.
func (s *Endpoint) stdioOf(token string) chan *Stdio {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stdio[token] == nil {
		s.stdio[token] = make(chan *Stdio, 1)
	}
	return s.stdio[token]
}

func (s *Endpoint) forgetStdio(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stdio, token)
}

// offerStdio keeps descriptors until they are taken, and returns when what has
// handed them over is gone.
func (s *Endpoint) offerStdio(token string, fds []int, attached *net.UnixConn, taken func()) {
	offered := &Stdio{FDs: fds, attached: attached, taken: taken}
	place := s.stdioOf(token)
	select {
	case place <- offered:
	default:
		offered.Close()
		return
	}
	_, _ = io.Copy(io.Discard, attached)
	select {
	case <-place:
		s.forgetStdio(token)
		offered.Close()
	default:
	}
}

// TakeStdio waits for what `runner attach` hands over under a token.
func (s *Endpoint) TakeStdio(ctx context.Context, token string) (*Stdio, error) {
	place := s.stdioOf(token)
	defer s.forgetStdio(token)
	timer := time.NewTimer(handshakeTime)
	defer timer.Stop()
	select {
	case offered := <-place:
		offered.taken()
		return offered, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
		return nil, &wire.Error{Kind: "bad_request", Message: "nobody has handed over the input and output"}
	}
}
