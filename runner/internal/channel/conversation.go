package channel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/wire"
)

const (
	defaultWindow = 1 << 20
	maxWindow     = 16 << 20
	// turnSize is how much one conversation may put into a batch before the next one has its turn.
	turnSize = wire.HeaderSize + wire.MaxPayload
	// minPooled is the size from which a chunk gets a buffer of full size.
	minPooled     = 8 << 10
	chunkOverhead = 64 // of a chunk besides its bytes
)

var chunkBuffers = sync.Pool{New: func() any { return new([wire.MaxData]byte) }}

// chunk is a piece of the conversation's output: data of one channel, an event, or the end of a
// channel.
type chunk struct {
	position int64
	kind     wire.Type
	channel  uint16
	data     []byte
}

func (c *chunk) end() int64 { return c.position + int64(len(c.data)) }

func (c *chunk) release(memory *budget.Account) {
	memory.Release(c.cost())
	if cap(c.data) == wire.MaxData {
		chunkBuffers.Put((*[wire.MaxData]byte)(c.data[:wire.MaxData]))
	}
	c.data = nil
}

// cost returns the memory that the chunk takes.
func (c *chunk) cost() int64 { return int64(cap(c.data)) + chunkOverhead }

// Conversation is one request with its input and output. It outlives the stream: sent data is kept
// until the driver has consumed it.
type Conversation struct {
	ID     uint64
	Ctx    context.Context // ends with CANCEL or with the server
	cancel context.CancelCauseFunc
	in     input
	budget *budget.Budget
	memory *budget.Account // of unconsumed data

	mu           sync.Mutex
	room         sync.Cond
	window       int64
	chunks       []chunk // oldest first; chunks before next are sent
	next, offset int     // the first byte that this stream has not sent
	end          int64   // position after the last chunk
	sent         int64   // highest position that was sent on any stream
	acked        int64   // consumed by the driver
	response     []byte
	answered     bool
	answeredTo   int // bytes of the response that were sent on this stream
	stream       *stream
	queued       bool // in the stream's queue
	closed       bool
}

func newConversation(parent context.Context, id uint64, window, inputWindow int64,
	memory *budget.Budget) *Conversation {
	c := &Conversation{ID: id, window: window, budget: memory, memory: memory.Open()}
	c.room.L = &c.mu
	c.in.init(inputWindow, c.memory)
	c.Ctx, c.cancel = context.WithCancelCause(parent)
	return c
}

// close frees everything. It is called when the driver has the response, or when the server ends.
func (c *Conversation) close() {
	c.cancel(context.Canceled)
	c.in.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for i := range c.chunks {
		c.chunks[i].release(c.memory)
	}
	c.chunks, c.response, c.stream = nil, nil, nil
	c.memory.Close()
	c.room.Broadcast()
}

var errConversationOver = errors.New("the conversation is over")

// Send queues data and waits while the driver is a whole window behind. With quiet it does not wake
// the writer, because more data follows at once.
func (c *Conversation) Send(channel uint16, data []byte, quiet bool) error {
	for len(data) > 0 {
		n := min(len(data), wire.MaxData)
		c.mu.Lock()
		if err := c.waitForRoom(); err != nil {
			c.mu.Unlock()
			return err
		}
		c.append(channel, data[:n])
		if !quiet {
			c.wake()
		}
		c.mu.Unlock()
		data = data[n:]
	}
	return nil
}

func (c *Conversation) waitForRoom() error {
	for c.isBehind() && !c.closed && !c.answered {
		c.wake()
		c.room.Wait()
	}
	if c.closed || c.answered {
		return errConversationOver
	}
	return nil
}

// isBehind reports whether the driver is a whole window behind, or half a window where memory is
// tight. The driver grants credit after each quarter.
func (c *Conversation) isBehind() bool {
	unread := c.end - c.acked
	return unread >= c.window || unread >= c.window/2 && c.budget.IsTight()
}

func (c *Conversation) append(channel uint16, data []byte) {
	if n := len(c.chunks); n > 0 {
		last := &c.chunks[n-1]
		if last.kind == wire.Data && last.channel == channel && len(last.data)+len(data) <= wire.MaxData {
			if c.next == n {
				c.next, c.offset = n-1, len(last.data)
			}
			before := last.cost()
			last.data = append(last.data, data...)
			c.memory.Force(last.cost() - before)
			c.end += int64(len(data))
			return
		}
	}
	var own []byte
	if len(data) >= minPooled {
		own = chunkBuffers.Get().(*[wire.MaxData]byte)[:0]
	}
	c.add(chunk{position: c.end, kind: wire.Data, channel: channel, data: append(own, data...)})
}

func (c *Conversation) add(piece chunk) {
	c.chunks = append(c.chunks, piece)
	c.end = piece.end()
	c.memory.Force(piece.cost())
}

// Fragments returns how many chunks wait for the driver. A tenant that switches between streams
// with every byte makes many; readers slow down for it.
func (c *Conversation) Fragments() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.chunks)
}

// SendEnd ends a channel.
func (c *Conversation) SendEnd(channel uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.answered {
		return
	}
	c.add(chunk{position: c.end, kind: wire.End, channel: channel})
	c.wake()
}

// Event queues an EVENT of encoded JSON.
func (c *Conversation) Event(encoded []byte, quiet bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.answered {
		return
	}
	c.add(chunk{position: c.end, kind: wire.Event, data: encoded})
	if !quiet {
		c.wake()
	}
}

// Flush wakes the writer for data that was queued quietly.
func (c *Conversation) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake()
}

// Respond queues the RESPONSE. Nothing may be sent after it.
func (c *Conversation) Respond(result any, err error) { c.respond(encodeResponse(result, err)) }

// DiscardInput drops all present and future input.
func (c *Conversation) DiscardInput() { c.in.discard() }

// FinishInput keeps the present input and drops all future input.
func (c *Conversation) FinishInput() { c.in.finish() }

func (c *Conversation) respond(encoded []byte) {
	c.in.discard()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.answered {
		return
	}
	c.answered, c.response = true, encoded
	c.memory.Force(int64(len(encoded)))
	c.room.Broadcast()
	c.wake()
}

func (c *Conversation) wake() {
	if c.stream != nil && !c.queued && c.hasPending() {
		c.queued = true
		c.stream.enqueue(c)
	}
}

func (c *Conversation) hasPending() bool {
	return c.next < len(c.chunks) || c.answered && c.answeredTo < len(c.response)
}

// appendFrames adds frames for stream s to batch, about one turn of them, and reports whether there
// are more.
func (c *Conversation) appendFrames(s *stream, batch []byte) (out []byte, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != s {
		return batch, false
	}
	limit := len(batch) + turnSize
	for c.next < len(c.chunks) {
		piece := &c.chunks[c.next]
		rest := piece.data[c.offset:]
		if len(batch)+wire.HeaderSize+wire.PositionSize+len(rest) > limit {
			return batch, true
		}
		batch = wire.AppendPositioned(batch, piece.kind, piece.channel, c.ID, piece.position+int64(c.offset), rest)
		c.sent = max(c.sent, piece.end())
		c.next, c.offset = c.next+1, 0
	}
	for c.answered && c.answeredTo < len(c.response) {
		rest := c.response[c.answeredTo:]
		n := min(len(rest), wire.MaxPayload)
		if len(batch)+wire.HeaderSize+n > limit {
			return batch, true
		}
		flags := uint8(0)
		if n < len(rest) {
			flags = wire.More
		}
		batch = wire.AppendFrame(batch, wire.Response, flags, c.ID, rest[:n])
		c.answeredTo += n
	}
	c.queued = false
	return batch, false
}

// credit handles CREDIT: the driver has consumed everything before position.
func (c *Conversation) credit(position int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if position > c.sent {
		return fmt.Errorf("%w: CREDIT up to %d, sent up to %d", wire.ErrProtocol, position, c.sent)
	}
	if position <= c.acked {
		return nil
	}
	c.acked = position
	gone := 0
	for gone < len(c.chunks) {
		piece := &c.chunks[gone]
		// An END at the position itself may not have arrived yet.
		if piece.end() > position || piece.kind == wire.End && piece.position >= position {
			break
		}
		piece.release(c.memory)
		gone++
	}
	if gone > 0 {
		if c.next < gone {
			c.offset = 0
		}
		kept := copy(c.chunks, c.chunks[gone:])
		clear(c.chunks[kept:])
		c.chunks, c.next = c.chunks[:kept], max(0, c.next-gone)
	}
	c.room.Broadcast()
	return nil
}

// attach continues the conversation on stream s from position. With fromStart it sends everything
// again that is still held.
func (c *Conversation) attach(s *stream, position int64, fromStart bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if fromStart {
		position = 0
		if len(c.chunks) > 0 {
			position = c.chunks[0].position
		}
	} else if position > c.sent || position < c.acked {
		return fmt.Errorf("%w: RESUME at %d, consumed up to %d and sent up to %d", wire.ErrProtocol, position, c.acked,
			c.sent)
	}
	next, offset := 0, 0
	for next < len(c.chunks) {
		piece := &c.chunks[next]
		if piece.end() > position || piece.kind == wire.End && piece.position >= position {
			break
		}
		next++
	}
	if next < len(c.chunks) && c.chunks[next].position < position {
		if c.chunks[next].kind == wire.Event {
			return fmt.Errorf("%w: RESUME at %d inside an event", wire.ErrProtocol, position)
		}
		offset = int(position - c.chunks[next].position)
	}
	c.next, c.offset, c.answeredTo = next, offset, 0
	c.stream, c.queued = s, false
	c.wake()
	return nil
}

// detach takes the conversation off stream s, which has ended.
func (c *Conversation) detach(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == s {
		c.stream, c.queued = nil, false
	}
}

// sendControl sends a small frame about the conversation on its stream, if it has one. Nothing may
// follow a RESPONSE.
func (c *Conversation) sendControl(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != nil && !c.answered {
		c.stream.control(frame)
	}
}

// RoomWithin waits while the driver is a whole window behind. It returns false if ctx ends first.
func (c *Conversation) RoomWithin(ctx context.Context) bool {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.room.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.isBehind() && !c.closed && ctx.Err() == nil {
		c.wake()
		c.room.Wait()
	}
	return ctx.Err() == nil
}
