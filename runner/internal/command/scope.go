package command

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/views"
	"hermes-exec/runner/internal/wire"
)

const (
	// killGraceS is the time between TERM and KILL, in seconds.
	killGraceS = 0.5
	// killTimeout bounds the wait for a receipt; the agent answers within 4 s.
	killTimeout = 5 * time.Second
)

// Scope is the time from a slot's first use to its next reset. Calls under way end with it, and it
// closes the pipes that they leave open. Its agent changes when a checkpoint freezes the slot.
type Scope struct {
	ID      string
	Running atomic.Int64 // commands of exec.run
	Views   views.Views
	Spills  *output.Spills

	agent  atomic.Pointer[link.Agent]
	gate   gate
	log    *log.Logger
	ctx    context.Context // ends with the cause that calls under way report
	cancel context.CancelCauseFunc

	mu          sync.Mutex
	orphanPipes map[*os.File]struct{} // pipes whose command has ended but not all writers
	ended       bool
}

// ErrSlotClosed is the error of calls that end with their slot.
var ErrSlotClosed = &wire.Error{Kind: "slot_closed", Message: "the slot was reset or destroyed while this ran"}

// NewScope makes the scope of an agent's slot. It ends with ctx at the latest.
func NewScope(ctx context.Context, id string, agent *link.Agent, log *log.Logger) *Scope {
	s := &Scope{ID: id, log: log, orphanPipes: map[*os.File]struct{}{}}
	s.agent.Store(agent)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.Spills = &output.Spills{Open: s.openSpill, Remove: s.removeSpill}
	return s
}

// Agent returns the agent of the slot.
func (s *Scope) Agent() *link.Agent { return s.agent.Load() }

// SetAgent replaces the agent by another one that has taken over the slot.
func (s *Scope) SetAgent(agent *link.Agent) { s.agent.Store(agent) }

// End ends all calls under way with the error why.
func (s *Scope) End(why *wire.Error) {
	s.cancel(why)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for f := range s.orphanPipes {
		_ = f.Close()
	}
	s.orphanPipes = nil
}

// keepPipe holds a pipe that outlives its command; it is closed with the slot.
func (s *Scope) keepPipe(f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = f.Close()
		return
	}
	s.orphanPipes[f] = struct{}{}
}

func (s *Scope) releasePipe(f *os.File) {
	s.mu.Lock()
	delete(s.orphanPipes, f)
	s.mu.Unlock()
	_ = f.Close()
}

// Context ends with the scope.
func (s *Scope) Context() context.Context { return s.ctx }

// Join returns a context that ends with ctx and with the scope.
func (s *Scope) Join(ctx context.Context) (context.Context, func()) { return Join(ctx, s.ctx) }

// Join returns a context that ends with the first of two contexts and has its cause.
func Join(ctx, other context.Context) (context.Context, func()) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() {
		stop()
		cancel(context.Canceled)
	}
}

// Err returns why the scope has ended, nil before.
func (s *Scope) Err() error { return context.Cause(s.ctx) }

func (s *Scope) openSpill(name string) (*os.File, string, error) {
	var where ipc.SpillResult
	fds, err := s.Agent().Call(s.ctx, ipc.OpSpill, ipc.Spill{Name: name}, &where)
	if err != nil {
		return nil, "", err
	}
	files := pipe.Files(fds)
	if len(files) != 1 {
		pipe.CloseFiles(files)
		return nil, "", &wire.Error{Kind: "internal", Message: "the agent opened no file"}
	}
	return files[0], string(where.Path), nil
}

func (s *Scope) removeSpill(path string) {
	params, err := json.Marshal(map[string]any{"path": ipc.Bytes(path), "recursive": false, "missing_ok": true})
	if err != nil {
		return
	}
	// A tenant may have removed it first; nothing depends on the answer.
	_, _ = s.Agent().Call(s.ctx, ipc.OpFile, ipc.FileOp{Method: "file.remove", Params: params}, nil)
}

// Explain returns the reason why the slot ended meanwhile, or err.
func (s *Scope) Explain(err error) error {
	if cause := s.Err(); cause != nil {
		return cause
	}
	return err
}

// Kill ends the process tree of a command, or only what has started since (ipc.Kill). A receipt
// with Left 1 means that the agent did not answer. The error is the reason why the slot ended.
func (s *Scope) Kill(token, since uint64) (ipc.Receipt, error) {
	ctx, cancel := context.WithTimeout(s.ctx, killTimeout)
	defer cancel()
	begun := time.Now()
	var receipt ipc.Receipt
	request := ipc.Kill{Token: token, GraceS: killGraceS, Since: since}
	if _, err := s.Agent().Call(ctx, ipc.OpKill, request, &receipt); err != nil {
		if cause := s.Err(); cause != nil {
			return receipt, cause
		}
		if e := ipc.AsError(err); e.Kind == "slot_closed" {
			return receipt, e // a reset ends everything, with a receipt of its own
		}
		s.log.Printf("kill of %d: %v", token, err)
		receipt = ipc.Receipt{Found: 1, Left: 1, DurationS: time.Since(begun).Seconds()}
	}
	return withHandles(receipt), nil
}
