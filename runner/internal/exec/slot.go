package exec

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/views"
	"hermes-exec/runner/internal/wire"
)

// Slot is the state of a slot from its first use to its next reset.
type Slot struct {
	id      string
	log     *log.Logger
	ctx     context.Context // ends with the cause that calls under way report
	cancel  context.CancelCauseFunc
	spills  *output.Spills
	running atomic.Int64 // commands of exec.run
	views   views.Views

	mu       sync.Mutex
	agent    *slots.Agent
	leftover map[*os.File]struct{} // pipes whose command has ended but not all writers
	ended    bool
}

// ErrSlotClosed is why calls end with their slot.
var ErrSlotClosed = &wire.Error{Kind: "slot_closed", Message: "the slot was reset or destroyed while this ran"}

func (st *Slot) end(why *wire.Error) {
	st.cancel(why)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
	for f := range st.leftover {
		_ = f.Close()
	}
	st.leftover = nil
}

// keep holds a pipe that outlives its command; it is closed with the slot.
func (st *Slot) keep(f *os.File) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		_ = f.Close()
		return
	}
	st.leftover[f] = struct{}{}
}

func (st *Slot) release(f *os.File) {
	st.mu.Lock()
	delete(st.leftover, f)
	st.mu.Unlock()
	_ = f.Close()
}

// Join gives a context that ends with ctx and with the slot.
func (st *Slot) Join(ctx context.Context) (context.Context, func()) {
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
func (st *Slot) cause() error {
	if cause := context.Cause(st.ctx); cause != nil {
		return cause
	}
	return ErrSlotClosed
}

func (st *Slot) call(ctx context.Context, op string, in, out any) ([]int, error) {
	st.mu.Lock()
	agent := st.agent
	st.mu.Unlock()
	return agent.Call(ctx, op, in, out)
}

func (st *Slot) openSpill(name string) (*os.File, string, error) {
	var where ipc.Spilled
	fds, err := st.call(st.ctx, ipc.OpSpill, ipc.Spill{Name: name}, &where)
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

func (st *Slot) removeSpill(path string) {
	params, err := json.Marshal(map[string]any{"path": ipc.Bytes(path), "recursive": false, "missing_ok": true})
	if err != nil {
		return
	}
	// A tenant may have removed it first; nothing depends on the answer.
	_, _ = st.call(st.ctx, ipc.OpFile, ipc.FileOp{Method: "file.remove", Params: params}, nil)
}

// startError tells a slot that ended in between from one that cannot start.
func (st *Slot) startError(err error) error {
	if st.ctx.Err() != nil {
		return st.cause()
	}
	return err
}

// kill ends the tree of a command. A receipt with Left 1 says that the agent
// did not answer; the error is why the slot ended.
func (st *Slot) kill(token uint64) (ipc.Receipt, error) {
	ctx, cancel := context.WithTimeout(st.ctx, killTime)
	defer cancel()
	begun := time.Now()
	var receipt ipc.Receipt
	if _, err := st.call(ctx, ipc.OpKill, ipc.Kill{Token: token, GraceS: killGrace}, &receipt); err != nil {
		if st.ctx.Err() != nil {
			return receipt, st.cause()
		}
		if e := ipc.AsError(err); e.Kind == "slot_closed" {
			return receipt, e // a reset ends everything, and proves it
		}
		st.log.Printf("kill of %d: %v", token, err)
		receipt = ipc.Receipt{Found: 1, Left: 1, DurationS: time.Since(begun).Seconds()}
	}
	return tidy(receipt), nil
}
