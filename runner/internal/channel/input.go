package channel

import (
	"context"
	"fmt"
	"sync"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/wire"
)

// DefaultInputWindow is how far the driver may be ahead of what was consumed, unless
// a request says otherwise.
const DefaultInputWindow = 512 << 10

// input is what the driver sends in a conversation: channel 0 until END.
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
	finished   bool // what has come is used, what will come is dropped
}

func (in *input) init(window int64, memory *budget.Account) {
	in.window, in.memory = window, memory
	in.arrived.L = &in.mu
}

// push handles DATA. The payload is copied. It reports whether the driver
// should be told that nothing of it is left to consume.
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

// read waits for the next piece. ok is false when there is none and there
// will be none: complete tells whether END arrived. Hand the piece back with
// done after use.
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

// done frees a piece and reports whether the driver should hear of it.
func (in *input) done(piece []byte) (grant bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	// What was discarded meanwhile counts as consumed already.
	in.consumed = min(in.consumed+int64(len(piece)), in.received)
	in.memory.Release(int64(cap(piece)))
	if cap(piece) == wire.MaxData {
		chunkBuffers.Put((*[wire.MaxData]byte)(piece[:wire.MaxData]))
	}
	return in.consumed-in.granted >= in.window/4
}

// grant gives the position for a CREDIT frame.
func (in *input) grant() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.granted = in.consumed
	return in.granted
}

// position is what was received so far.
func (in *input) position() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.received
}

// discard drops what is there and what will come: nobody reads it any more.
func (in *input) discard() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.discarding = true
	in.consumed = in.received
	in.drop()
	in.arrived.Broadcast()
}

// finish lets what is there be used, and drops what will come.
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

// drop is called with the lock.
func (in *input) drop() {
	for _, piece := range in.chunks {
		in.memory.Release(int64(cap(piece)))
	}
	in.chunks = nil
}

// Receive gives every piece of input to use, until END (complete), until use
// fails, or until ctx ends, and grants credit for what was used up.
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

// GrantInput lets the driver send as much as was consumed.
func (c *Conversation) GrantInput() {
	c.sendControl(wire.AppendPositioned(nil, wire.Credit, 0, c.ID, c.in.grant(), nil))
}
