package serve

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"
	"sync/atomic"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

// slotState is what serve holds for one life of a slot: from its first use to
// its next reset.
type slotState struct {
	id      string
	log     *log.Logger
	ctx     context.Context // ends with the cause that calls under way report
	cancel  context.CancelCauseFunc
	spills  *output.Spills
	running atomic.Int64            // commands of exec.run
	views   atomic.Pointer[[]*view] // nil while nobody looks

	mu       sync.Mutex
	agent    *slots.Agent
	leftover map[*os.File]struct{} // pipes whose command has ended but not all writers
	ended    bool
}

var (
	errSlotClosed = &wire.Error{Kind: "slot_closed", Message: "the slot was reset or destroyed while this ran"}
)

// slot gives the state of a slot and its running agent.
func (s *Server) slot(ctx context.Context, id string) (*slotState, *slots.Agent, error) {
	if id == "" {
		return nil, nil, channel.BadRequest("slot is missing")
	}
	agent, err := s.slots.Agent(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.states[id]
	if state == nil {
		state = &slotState{id: id, log: s.log, leftover: map[*os.File]struct{}{}}
		state.ctx, state.cancel = context.WithCancelCause(s.ctx)
		state.spills = &output.Spills{Open: state.openSpill, Remove: state.removeSpill}
		s.states[id] = state
	}
	state.mu.Lock()
	state.agent = agent
	state.mu.Unlock()
	return state, agent, nil
}

// endSlot ends everything that serve holds for a slot.
func (s *Server) endSlot(id string, why *wire.Error) {
	s.mu.Lock()
	state := s.states[id]
	delete(s.states, id)
	for key, p := range s.processes {
		if p.slot == state {
			delete(s.processes, key)
		}
	}
	for key, x := range s.sessions {
		if x.slot == state {
			x.end()
			delete(s.sessions, key)
		}
	}
	s.mu.Unlock()
	if state == nil {
		return
	}
	state.cancel(why)
	state.mu.Lock()
	state.ended = true
	for f := range state.leftover {
		_ = f.Close()
	}
	state.leftover = nil
	state.mu.Unlock()
}

func (s *Server) slotDied(slot string, why *ipc.Error) { s.endSlot(slot, channel.AsWire(why)) }

// keep holds a pipe that outlives its command; it is closed with the slot.
func (st *slotState) keep(f *os.File) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		_ = f.Close()
		return
	}
	st.leftover[f] = struct{}{}
}

func (st *slotState) release(f *os.File) {
	st.mu.Lock()
	delete(st.leftover, f)
	st.mu.Unlock()
	_ = f.Close()
}

// join gives a context that ends with ctx and with the slot.
func (st *slotState) join(ctx context.Context) (context.Context, func()) {
	return join(ctx, st.ctx)
}

// join gives a context that ends with the first of two, and has its cause.
func join(ctx, other context.Context) (context.Context, func()) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() {
		stop()
		cancel(context.Canceled)
	}
}

// cause is why the slot's state ended.
func (st *slotState) cause() error {
	if cause := context.Cause(st.ctx); cause != nil {
		return cause
	}
	return errSlotClosed
}

func (st *slotState) call(ctx context.Context, op string, in, out any) ([]int, error) {
	st.mu.Lock()
	agent := st.agent
	st.mu.Unlock()
	return agent.Call(ctx, op, in, out)
}

func (st *slotState) openSpill(name string) (*os.File, string, error) {
	var where ipc.Spilled
	fds, err := st.call(st.ctx, ipc.OpSpill, ipc.Spill{Name: name}, &where)
	if err != nil {
		return nil, "", err
	}
	files := filesOf(fds)
	if len(files) != 1 {
		closeAll(files)
		return nil, "", &wire.Error{Kind: "internal", Message: "the agent opened no file"}
	}
	return files[0], string(where.Path), nil
}

func (st *slotState) removeSpill(path string) {
	params, err := json.Marshal(map[string]any{"path": ipc.Bytes(path), "recursive": false, "missing_ok": true})
	if err != nil {
		return
	}
	// A tenant may have removed it first; nothing depends on the answer.
	_, _ = st.call(st.ctx, ipc.OpFile, ipc.FileOp{Method: "file.remove", Params: params}, nil)
}

func filesOf(fds []int) []*os.File {
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "from-agent")
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
