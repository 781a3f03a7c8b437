package channel

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/wire"
)

// Owner carries out the requests of an Endpoint.
type Owner interface {
	// NoteActivity is called for every frame of the driver.
	NoteActivity()
	// ApplyHello is called when the driver has authenticated itself on a stream, before READY.
	ApplyHello(hello wire.HelloMessage)
	// Begin carries out a request on a goroutine of its own, up to Respond.
	Begin(c *Conversation, m wire.RequestMessage)
	// Follow ends the runner when ended returns true, for drivers on this host.
	Follow(ended func() bool)
	// End is called when the driver wants the runner to end.
	End(reason, message string)
	// Facts returns the facts of READY.
	Facts() any
	// Report returns the figures with which a KEEPALIVE is answered.
	Report() []byte
}

// Endpoint accepts the streams of one driver. The newest stream is in use.
type Endpoint struct {
	owner  Owner
	base   string // directory of this runner; the socket is below it
	bootID string
	log    *log.Logger
	memory *budget.Budget
	ctx    context.Context // ends with the runner

	mu            sync.Mutex
	key           []byte
	current       *stream
	conversations map[uint64]*Conversation
	seen          seenIDs
	handshakes    []conn // not authenticated yet, oldest first

	streamCount atomic.Uint64 // streams so far
}

// NewEndpoint makes an unclaimed Endpoint. It refuses connections after ctx.
func NewEndpoint(ctx context.Context, owner Owner, base, bootID string, memory *budget.Budget,
	log *log.Logger) *Endpoint {
	return &Endpoint{owner: owner, base: base, bootID: bootID, log: log, memory: memory, ctx: ctx,
		conversations: map[uint64]*Conversation{}}
}

// Listen makes the socket for `runner attach`; stop removes it.
func (s *Endpoint) Listen() (stop func(), err error) {
	listener, err := listen(s.base)
	if err != nil {
		return nil, err
	}
	go s.accept(listener)
	return func() {
		_ = listener.Close()
		_ = os.Remove(socketPath(s.base))
	}, nil
}

// Close sends the driver the reason for the runner's end, and gives up when ctx ends.
func (s *Endpoint) Close(ctx context.Context, reason, message string) {
	s.mu.Lock()
	current := s.current
	s.current = nil
	s.mu.Unlock()
	if current == nil {
		return
	}
	current.goodbye(reason, message)
	select {
	case <-current.closed:
	case <-ctx.Done():
	}
}

// adopt makes st the current stream, ends the older one, and detaches every conversation until the
// driver resumes it. It returns false if the driver has opened a newer stream since.
func (s *Endpoint) adopt(st *stream) bool {
	s.mu.Lock()
	old := s.current
	if old != nil && old.order > st.order {
		s.mu.Unlock()
		return false
	}
	s.current = st
	all := make([]*Conversation, 0, len(s.conversations))
	for _, c := range s.conversations {
		all = append(all, c)
	}
	s.mu.Unlock()
	if old == nil {
		return true
	}
	old.retired.Store(true)
	for _, c := range all {
		c.detach(old)
	}
	old.goodbye("replaced", "a newer stream was attached")
	return true
}

// detachAll is called when a stream has ended.
func (s *Endpoint) detachAll(st *stream) {
	s.mu.Lock()
	if s.current == st {
		s.current = nil
	}
	all := make([]*Conversation, 0, len(s.conversations))
	for _, c := range s.conversations {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.detach(st)
	}
}

func (s *Endpoint) conversation(id uint64) (c *Conversation, seen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conversations[id], s.seen.has(id)
}

// acknowledge handles ACK: the driver has the response.
func (s *Endpoint) acknowledge(c *Conversation) error {
	c.mu.Lock()
	answered := c.answered
	c.mu.Unlock()
	if !answered {
		return fmt.Errorf("%w: ACK of id %d, which has no response", wire.ErrProtocol, c.ID)
	}
	s.mu.Lock()
	delete(s.conversations, c.ID)
	s.mu.Unlock()
	c.close()
	return nil
}

// request begins a conversation, or attaches the stream to the conversation of that id.
func (s *Endpoint) request(st *stream, id uint64, payload []byte) error {
	m, decodeErr := wire.DecodeRequest(payload)
	s.mu.Lock()
	if s.current != st {
		s.mu.Unlock()
		return errDetached
	}
	if c := s.conversations[id]; c != nil {
		s.mu.Unlock()
		return c.attach(st, 0, true)
	}
	if s.seen.has(id) {
		s.mu.Unlock()
		s.answer(st, id, &wire.Error{Kind: "stale", Message: "the request was acknowledged before"})
		return nil
	}
	window, err := windowOf(m.Window, defaultWindow)
	inputWindow, inputErr := windowOf(m.InputWindow, DefaultInputWindow)
	decodeErr = cmp.Or(decodeErr, err, inputErr)
	c := newConversation(s.ctx, id, window, inputWindow, s.memory)
	c.stream = st
	c.memory.Force(int64(len(m.Params)))
	s.seen.add(id)
	s.conversations[id] = c
	s.mu.Unlock()
	if decodeErr != nil {
		c.respond(encodeResponse(nil, BadRequest("%v", decodeErr)))
		return nil
	}
	go s.owner.Begin(c, m)
	return nil
}

// windowOf returns the requested window, or the usual one.
func windowOf(asked, usual int64) (int64, error) {
	if asked < 0 || asked > maxWindow {
		return usual, fmt.Errorf("window of %d bytes, the most is %d", asked, maxWindow)
	}
	return cmp.Or(asked, usual), nil
}

// refuse answers a request whose text was not kept.
func (s *Endpoint) refuse(st *stream, id uint64, why *wire.Error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != st || s.seen.has(id) {
		return nil
	}
	c := newConversation(s.ctx, id, defaultWindow, DefaultInputWindow, s.memory)
	c.stream = st
	s.seen.add(id)
	s.conversations[id] = c
	c.respond(encodeResponse(nil, why))
	return nil
}

// answer responds to an id without a conversation.
func (s *Endpoint) answer(st *stream, id uint64, why *wire.Error) {
	st.control(wire.AppendFrame(nil, wire.Response, 0, id, encodeResponse(nil, why)))
}
