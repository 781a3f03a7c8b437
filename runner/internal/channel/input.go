package channel

import (
	"context"
	"fmt"
	"sync"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/wire"
)

// DefaultInputWindow is how far the driver may be ahead of the consumed input, unless a request
// sets another window.
const DefaultInputWindow = 512 << 10

// input is the input of a conversation: channel 0 until END.
type input struct {
	window     int64
	memory     *budget.Account
	mu         sync.Mutex
	arrived    sync.Cond
	chunks     [][]byte
	received   int64
	consumed   int64
	granted    int64
	ended      bool
	closed     bool
	discarding bool
	finished   bool // present input is used, future input is dropped
}

func (in *input) init(window int64, memory *budget.Account) {
	in.window, in.memory = window, memory
	in.arrived.L = &in.mu
}

// push handles DATA. It copies the payload. grant reports whether the driver should get credit for
// input that was dropped.
func (in *input) push(position int64, data []byte) (grant bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if position > in.received {
		return false, fmt.Errorf("%w: DATA at %d, expected %d", wire.ErrProtocol, position, in.received)
	}
	if skip := in.received - position; skip >= int64(len(data)) {
		return false, nil // sent again after a reconnect
	} else {
		data = data[skip:]
	}
	if in.ended {
		return false, fmt.Errorf("%w: DATA after END", wire.ErrProtocol)
	}
	if in.received-in.granted > in.window {
		return false, fmt.Errorf("%w: DATA beyond the window", wire.ErrProtocol)
	}
	in.received += int64(len(data))
	if in.discarding || in.closed || in.finished {
		in.consumed = in.received
		return true, nil
	}
	var own []byte
	if len(data) >= minPooled {
		own = chunkBuffers.Get().(*[wire.MaxData]byte)[:0]
	}
	own = append(own, data...)
	in.memory.Force(int64(cap(own)))
	in.chunks = append(in.chunks, own)
	in.arrived.Broadcast()
	return false, nil
}

// end handles END.
func (in *input) end(position int64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if position > in.received {
		return fmt.Errorf("%w: END at %d, expected %d", wire.ErrProtocol, position, in.received)
	}
	in.ended = true
	in.arrived.Broadcast()
	return nil
}

// read waits for the next piece. ok is false at the end of the input; complete then reports whether
// END arrived. Return the piece with done after use.
func (in *input) read() (piece []byte, ok, complete bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.chunks) == 0 && !in.ended && !in.closed && !in.discarding && !in.finished {
		in.arrived.Wait()
	}
	if in.closed || in.discarding {
		return nil, false, false
	}
	if len(in.chunks) == 0 {
		return nil, false, true
	}
	piece = in.chunks[0]
	in.chunks[0] = nil
	in.chunks = in.chunks[1:]
	return piece, true, false
}

// done frees a piece and reports whether the driver should get credit.
func (in *input) done(piece []byte) (grant bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	// Input that was discarded meanwhile already counts as consumed.
	in.consumed = min(in.consumed+int64(len(piece)), in.received)
	in.memory.Release(int64(cap(piece)))
	if cap(piece) == wire.MaxData {
		chunkBuffers.Put((*[wire.MaxData]byte)(piece[:wire.MaxData]))
	}
	return in.consumed-in.granted >= in.window/4
}

// grant returns the position for a CREDIT frame.
func (in *input) grant() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.granted = in.consumed
	return in.granted
}

// position returns how much input was received.
func (in *input) position() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.received
}

// discard drops all present and future input.
func (in *input) discard() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.discarding = true
	in.consumed = in.received
	in.drop()
	in.arrived.Broadcast()
}

// finish keeps the present input and drops all future input.
func (in *input) finish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.finished = true
	in.arrived.Broadcast()
}

func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.drop()
	in.arrived.Broadcast()
}

// drop must be called with the lock held.
func (in *input) drop() {
	for _, piece := range in.chunks {
		in.memory.Release(int64(cap(piece)))
	}
	in.chunks = nil
}

// Receive passes every piece of input to use, until END (complete), until use fails, or until ctx
// ends, and grants credit for consumed input.
func (c *Conversation) Receive(ctx context.Context, use func(piece []byte) error) (complete bool, err error) {
	stop := context.AfterFunc(ctx, c.in.discard)
	defer stop()
	for {
		piece, ok, complete := c.in.read()
		if !ok {
			return complete, nil
		}
		err := use(piece)
		if c.in.done(piece) {
			c.GrantInput()
		}
		if err != nil {
			return false, err
		}
	}
}

// GrantInput sends credit for the consumed input.
func (c *Conversation) GrantInput() {
	c.sendControl(wire.AppendPositioned(nil, wire.Credit, 0, c.ID, c.in.grant(), nil))
}
