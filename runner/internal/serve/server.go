// Package serve is the serving runner: it authenticates the driver's streams,
// holds conversations across them, keeps the lease, and carries out the
// methods of docs/protocol.md through the agents of the slots.
package serve

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

const (
	// longestTick bounds what one tick may add to the silence, so that a box
	// that was paused does not age at once.
	longestTick = 2 * time.Second
	// firstContact is how long an unclaimed runner waits for its driver.
	firstContact = 60 * time.Second
	closeTime    = 10 * time.Second
	// quietTime without a request is when memory is given back to the system.
	quietTime = 3 * time.Second
)

// Config of a Server.
type Config struct {
	Base      string        // directory of this runner; the socket is below it
	Lease     time.Duration // before the first HELLO says otherwise; 0: 60 s
	Slots     *slots.Manager
	Isolation any // facts of the probe, for READY
	Version   string
	Log       *log.Logger
}

// Server is one serving runner: one boot id, one key, one driver.
type Server struct {
	config  Config
	bootID  string
	slots   *slots.Manager
	log     *log.Logger
	ctx     context.Context // ends with the server
	cancel  context.CancelCauseFunc
	devNull *os.File

	mu            sync.Mutex
	key           []byte
	current       *stream
	conversations map[uint64]*conversation
	seen          seenIDs
	states        map[string]*slotState
	processes     map[string]*process
	sessions      map[string]*shellSession
	handshakes    []conn // not authenticated yet, oldest first

	exitsMu sync.Mutex
	exits   map[uint64]chan<- ipc.Exit // where the exit of a command is waited for, by token

	lease  atomic.Int64 // nanoseconds
	spoken atomic.Bool  // something was heard since the last tick
	// requests since the last tick
	requests atomic.Int64
	opened   atomic.Uint64 // streams so far
	once     sync.Once
	reason   goodbyeReason
}

type goodbyeReason struct{ reason, message string }

// New makes a server; Run starts it.
func New(config Config) (*Server, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	if config.Log == nil {
		config.Log = log.New(io.Discard, "", 0)
	}
	if config.Lease <= 0 {
		config.Lease = firstContact
	}
	devNull, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("standard input of commands: %w", err)
	}
	s := &Server{
		config: config, bootID: hex.EncodeToString(id), slots: config.Slots, log: config.Log,
		conversations: map[uint64]*conversation{}, states: map[string]*slotState{}, processes: map[string]*process{},
		sessions: map[string]*shellSession{}, exits: map[uint64]chan<- ipc.Exit{}, devNull: devNull,
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.lease.Store(int64(config.Lease))
	s.slots.OnExit(s.exited)
	s.slots.OnDeath(s.slotDied)
	return s, nil
}

// Run serves until the driver, the lease or end says that it is over, then
// ends everything that was started.
func (s *Server) Run() error {
	go ownHash()
	listener, err := listen(s.config.Base)
	if err != nil {
		return err
	}
	go s.keepLease()
	go s.accept(listener)
	<-s.ctx.Done()
	_ = listener.Close()
	s.shutDown()
	return nil
}

// End makes Run return after an orderly end.
func (s *Server) End(message string) { s.end("shutdown", message) }

func (s *Server) end(reason, message string) {
	s.once.Do(func() {
		s.reason = goodbyeReason{reason, message}
		s.log.Printf("ending: %s: %s", reason, message)
		s.cancel(&wire.Error{Kind: "canceled", Message: "the runner ends: " + message})
	})
}

func (s *Server) shutDown() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	receipt := s.slots.Close(ctx)
	if receipt.Left > 0 {
		s.log.Printf("%d processes are left", receipt.Left)
	}
	s.mu.Lock()
	current := s.current
	s.current = nil
	s.mu.Unlock()
	if current != nil {
		current.goodbye(s.reason.reason, s.reason.message)
		select {
		case <-current.closed:
		case <-ctx.Done():
		}
	}
	removeSocket(s.config.Base)
}

func (s *Server) heard() { s.spoken.Store(true) }

func (s *Server) keepLease() {
	silence, quiet := time.Duration(0), time.Duration(0)
	last := time.Now()
	for {
		lease := time.Duration(s.lease.Load())
		timer := time.NewTimer(max(min(lease/8, longestTick), time.Millisecond))
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return
		}
		now := time.Now()
		silence += min(now.Sub(last), longestTick)
		if busy := s.requests.Swap(0) > 0; busy {
			quiet = 0
		} else if before := quiet; before <= quietTime {
			if quiet += now.Sub(last); quiet > quietTime {
				initproc.FreeMemory()
			}
		}
		last = now
		if s.spoken.Swap(false) {
			silence = 0
		}
		if lease = time.Duration(s.lease.Load()); silence >= lease {
			s.end("lease", fmt.Sprintf("nothing was heard from the driver for %v", lease))
			return
		}
	}
}

// adopt makes st the stream of this runner, tells the older one, and stops
// every conversation until the driver resumes it. It does nothing for a stream
// that came to it so late that the driver has opened another one since.
func (s *Server) adopt(st *stream, lease time.Duration) bool {
	s.lease.Store(int64(lease))
	s.heard()
	s.mu.Lock()
	old := s.current
	if old != nil && old.order > st.order {
		s.mu.Unlock()
		return false
	}
	s.current = st
	all := make([]*conversation, 0, len(s.conversations))
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

// gone is called when a stream has ended.
func (s *Server) gone(st *stream) {
	s.mu.Lock()
	if s.current == st {
		s.current = nil
	}
	all := make([]*conversation, 0, len(s.conversations))
	for _, c := range s.conversations {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.detach(st)
	}
}

func (s *Server) conversation(id uint64) (c *conversation, seen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conversations[id], s.seen.has(id)
}

// acknowledge handles ACK: the driver has the response.
func (s *Server) acknowledge(c *conversation) error {
	c.mu.Lock()
	answered := c.answered
	c.mu.Unlock()
	if !answered {
		return fmt.Errorf("%w: ACK of id %d, which has no response", wire.ErrProtocol, c.id)
	}
	s.mu.Lock()
	delete(s.conversations, c.id)
	s.mu.Unlock()
	c.close()
	return nil
}

// request begins a conversation, or joins the stream to the one of that id.
func (s *Server) request(st *stream, id uint64, payload []byte) error {
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
	if decodeErr == nil && (m.Window < 0 || m.Window > maxWindow) {
		decodeErr = fmt.Errorf("window of %d bytes, the most is %d", m.Window, maxWindow)
	}
	if m.Window <= 0 || decodeErr != nil {
		m.Window = defaultWindow
	}
	c := newConversation(s.ctx, id, m.Window)
	c.stream = st
	s.seen.add(id)
	s.conversations[id] = c
	s.mu.Unlock()
	if decodeErr != nil {
		c.respond(encodeResponse(nil, badRequest("%v", decodeErr)))
		return nil
	}
	s.requests.Add(1)
	go s.carryOut(c, m)
	return nil
}

// refuse answers a request whose text was not kept.
func (s *Server) refuse(st *stream, id uint64, why *wire.Error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != st || s.seen.has(id) {
		return nil
	}
	c := newConversation(s.ctx, id, defaultWindow)
	c.stream = st
	s.seen.add(id)
	s.conversations[id] = c
	c.respond(encodeResponse(nil, why))
	return nil
}

// answer responds to an id without a conversation.
func (s *Server) answer(st *stream, id uint64, why *wire.Error) {
	st.control(wire.AppendFrame(nil, wire.Response, 0, id, encodeResponse(nil, why)))
}

func (s *Server) carryOut(c *conversation, m wire.RequestMessage) {
	result, err := s.guarded(c, m)
	if s.ctx.Err() != nil {
		return // GOODBYE says what happened; a half-ended answer would mislead
	}
	c.respond(encodeResponse(result, err))
}

func (s *Server) guarded(c *conversation, m wire.RequestMessage) (result any, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			s.log.Printf("%s: %v\n%s", m.Method, fault, debug.Stack())
			err = &wire.Error{Kind: "internal", Message: fmt.Sprint(fault)}
		}
	}()
	method := methods[m.Method]
	if method == nil {
		return nil, badRequest("unknown method %q", m.Method)
	}
	return method(s, c, m.Params)
}

// contain is deferred in the goroutines of one conversation or stream: a fault
// there must not end the runner of all the others.
func contain(log *log.Logger, what string) {
	if fault := recover(); fault != nil {
		log.Printf("%s: %v\n%s", what, fault, debug.Stack())
	}
}

func encodeResponse(result any, err error) []byte {
	if err != nil {
		result = nil
	} else if result == nil {
		result = struct{}{}
	}
	encoded, encodeErr := json.Marshal(wire.ResponseMessage{Result: result, Error: asWire(err)})
	if encodeErr == nil && len(encoded) > wire.MaxMessage {
		encodeErr = fmt.Errorf("a result of %d bytes", len(encoded))
		return encodeResponse(nil, &wire.Error{Kind: "too_large", Message: encodeErr.Error()})
	}
	if encodeErr != nil {
		return encodeResponse(nil, &wire.Error{Kind: "internal", Message: encodeErr.Error()})
	}
	return encoded
}

// asWire gives an error the form of the protocol.
func asWire(err error) *wire.Error {
	if err == nil {
		return nil
	}
	var w *wire.Error
	if errors.As(err, &w) {
		return w
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &wire.Error{Kind: "canceled", Message: err.Error()}
	}
	e := ipc.AsError(err)
	if e.Kind == "" {
		e.Kind = "internal"
	}
	w = &wire.Error{Kind: e.Kind, Message: e.Message, Errno: e.Errno, Path: e.Path}
	if e.Detail != nil {
		w.Detail = e.Detail
	}
	return w
}

func badRequest(format string, args ...any) *wire.Error {
	return &wire.Error{Kind: "bad_request", Message: fmt.Sprintf(format, args...)}
}

var errCanceled = &wire.Error{Kind: "canceled", Message: "the request was canceled"}
