package channel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/wire"
)

const (
	// maxControl bounds the control frames that wait for a driver that does not read.
	maxControl = 4 << 20
	// maxPartial bounds the unfinished requests of one stream.
	maxPartial = 256 << 20
	// goodbyeTimeout is how long the last frame may take to leave.
	goodbyeTimeout = 2 * time.Second
	batchSize      = 2 * turnSize
)

// conn is the underlying byte stream.
type conn interface {
	io.Reader
	io.Writer
	Close() error
}

// stream is one authenticated connection of the driver. One goroutine reads it, one writes it.
type stream struct {
	end    *Endpoint
	order  uint64 // among all streams, by when they were opened
	conn   conn
	reader *wire.Reader

	mu       sync.Mutex
	wakeup   chan struct{}
	controls []byte // encoded frames that are sent before everything else
	queue    []*Conversation
	ending   bool // GOODBYE is the last of controls
	closed   chan struct{}
	once     sync.Once
	retired  atomic.Bool // a newer stream has replaced this one

	partial      map[uint64][]byte
	partialBytes int
	memory       *budget.Account     // of partial
	skipping     map[uint64]struct{} // requests that were too large
}

func newStream(end *Endpoint, c conn, reader *wire.Reader) *stream {
	return &stream{
		end: end, conn: c, reader: reader, wakeup: make(chan struct{}, 1), closed: make(chan struct{}),
		partial: map[uint64][]byte{}, memory: end.memory.Open(), skipping: map[uint64]struct{}{},
	}
}

func (s *stream) close() {
	s.once.Do(func() {
		close(s.closed)
		_ = s.conn.Close()
	})
}

// enqueue adds a conversation to the writer's queue. The conversation must be locked.
func (s *stream) enqueue(c *Conversation) {
	s.mu.Lock()
	s.queue = append(s.queue, c)
	s.mu.Unlock()
	s.wake()
}

func (s *stream) wake() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

// control queues small frames of the connection.
func (s *stream) control(frame []byte) {
	s.mu.Lock()
	full := len(s.controls) > maxControl
	if !s.ending && !full {
		s.controls = append(s.controls, frame...)
	}
	s.mu.Unlock()
	if full {
		s.close()
		return
	}
	s.wake()
}

// goodbye sends the reason and ends the stream.
func (s *stream) goodbye(reason, message string) {
	frame := goodbyeFrame(reason, message)
	s.mu.Lock()
	if !s.ending {
		s.ending = true
		s.controls = append(s.controls, frame...)
	}
	s.mu.Unlock()
	s.wake()
	// A driver that does not read cannot hold the connection open.
	time.AfterFunc(goodbyeTimeout, s.close)
}

func goodbyeFrame(reason, message string) []byte {
	payload, err := json.Marshal(wire.GoodbyeMessage{Reason: reason, Message: message})
	if err != nil {
		payload = []byte("{}")
	}
	return wire.AppendFrame(nil, wire.Goodbye, 0, 0, payload)
}

// write is the only goroutine that writes: control frames first, then one turn of each conversation
// that has data, round robin.
func (s *stream) write() {
	defer s.close()
	defer Contain(s.end.log, "stream")
	var batch []byte
	for {
		select {
		case <-s.wakeup:
		case <-s.closed:
			return
		}
		for {
			var last bool
			batch, last = s.fill(batch[:0])
			if len(batch) == 0 {
				break
			}
			if _, err := s.conn.Write(batch); err != nil || last {
				return
			}
		}
		if cap(batch) > batchSize {
			batch = nil
		}
	}
}

func (s *stream) fill(batch []byte) (out []byte, last bool) {
	s.mu.Lock()
	batch = append(batch, s.controls...)
	s.controls = s.controls[:0]
	if cap(s.controls) > batchSize {
		s.controls = nil
	}
	last = s.ending
	s.mu.Unlock()
	for !last && len(batch) < turnSize {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.mu.Unlock()
			break
		}
		c := s.queue[0]
		s.queue[0] = nil
		if s.queue = s.queue[1:]; len(s.queue) == 0 {
			s.queue = nil
		}
		s.mu.Unlock()
		var more bool
		if batch, more = c.appendFrames(s, batch); more {
			s.mu.Lock()
			s.queue = append(s.queue, c)
			s.mu.Unlock()
		}
	}
	return batch, last
}

// read handles frames until the stream ends, and returns the reason.
func (s *stream) read() error {
	defer s.memory.Close()
	for {
		header, payload, err := s.reader.Next()
		if err != nil {
			return err
		}
		if s.retired.Load() {
			return errReplaced
		}
		s.end.owner.NoteActivity()
		if err := s.handleFrame(header, payload); err != nil {
			return err
		}
	}
}

var (
	errDetached = errors.New("the driver left")
	errReplaced = errors.New("a newer stream was attached")
)

func (s *stream) handleFrame(h wire.Header, payload []byte) error {
	switch h.Type {
	case wire.Keepalive:
		s.control(wire.AppendFrame(nil, wire.Keepalive, 0, 0, s.end.owner.Report()))
		return nil
	case wire.Request:
		return s.request(h, payload)
	case wire.Resume:
		return s.resume(h, payload)
	case wire.Goodbye:
		var m wire.GoodbyeMessage
		if err := json.Unmarshal(payload, &m); err != nil {
			return fmt.Errorf("%w: GOODBYE: %w", wire.ErrProtocol, err)
		}
		if m.Reason == "shutdown" {
			s.end.owner.End("shutdown", "the driver requested it")
		}
		return errDetached
	case wire.Data, wire.End, wire.Credit, wire.Ack, wire.Cancel:
		return s.conversationFrame(h, payload)
	}
	return fmt.Errorf("%w: frame type %d from a driver", wire.ErrProtocol, h.Type)
}

// conversationFrame handles the frames of an existing conversation.
func (s *stream) conversationFrame(h wire.Header, payload []byte) error {
	c, seen := s.end.conversation(h.ID)
	if c == nil {
		if !seen {
			return fmt.Errorf("%w: frame type %d for id %d, which was never requested", wire.ErrProtocol, h.Type, h.ID)
		}
		return nil
	}
	switch h.Type {
	case wire.Ack:
		return s.end.acknowledge(c)
	case wire.Cancel:
		c.cancel(ErrCanceled)
		return nil
	}
	position, err := wire.Position(payload)
	if err != nil {
		return err
	}
	if h.Type == wire.Credit {
		return c.credit(position)
	}
	if h.Channel != 0 {
		return fmt.Errorf("%w: input on channel %d", wire.ErrProtocol, h.Channel)
	}
	if h.Type == wire.End {
		return c.in.end(position)
	}
	grant, err := c.in.push(position, payload[wire.PositionSize:])
	if grant {
		c.GrantInput()
	}
	return err
}

func (s *stream) request(h wire.Header, payload []byte) error {
	whole := payload
	if _, skip := s.skipping[h.ID]; skip {
		if h.Flags&wire.More == 0 {
			delete(s.skipping, h.ID)
		}
		return nil
	}
	if earlier, ok := s.partial[h.ID]; ok || h.Flags&wire.More != 0 {
		if len(earlier)+len(payload) > wire.MaxMessage || s.partialBytes+len(payload) > maxPartial {
			s.partialBytes -= len(earlier)
			s.memory.Release(int64(len(earlier)))
			delete(s.partial, h.ID)
			if h.Flags&wire.More != 0 {
				s.skipping[h.ID] = struct{}{}
			}
			return s.end.refuse(s, h.ID, &wire.Error{Kind: "too_large",
				Message: fmt.Sprintf("a request of more than %d bytes", wire.MaxMessage)})
		}
		whole = append(earlier, payload...)
		s.partialBytes += len(payload)
		s.memory.Force(int64(len(payload)))
		if h.Flags&wire.More != 0 {
			s.partial[h.ID] = whole
			return nil
		}
		s.partialBytes -= len(whole)
		delete(s.partial, h.ID)
		s.memory.Release(int64(len(whole)))
	}
	return s.end.request(s, h.ID, whole)
}

func (s *stream) resume(h wire.Header, payload []byte) error {
	position, err := wire.Position(payload)
	if err != nil {
		return err
	}
	c, _ := s.end.conversation(h.ID)
	if c == nil {
		s.control(wire.AppendResumed(nil, h.ID, false, 0))
		return nil
	}
	// The driver may free its input as soon as it gets this position.
	s.control(wire.AppendResumed(nil, h.ID, true, c.in.position()))
	s.control(wire.AppendPositioned(nil, wire.Credit, 0, h.ID, c.in.grant(), nil))
	return c.attach(s, position, false)
}
