// Package serve is the serving runner: it keeps the lease, and carries out the
// methods of docs/protocol.md through the agents of the slots.
package serve

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/exec"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/leftover"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

const (
	// longestTick bounds what one tick may add to the silence, so that the
	// lease of a box that was paused is not over at once.
	longestTick = 2 * time.Second
	// firstContact is how long an unclaimed runner waits for its driver.
	firstContact = 60 * time.Second
	closeTime    = 10 * time.Second
	// flattenTime bounds the search for what the engine of a container could not remove.
	flattenTime = 5 * time.Second
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
	config Config
	bootID string
	slots  *slots.Manager
	exec   *exec.Runner
	log    *log.Logger
	began  time.Time
	ctx    context.Context // ends with the server
	cancel context.CancelCauseFunc
	// Endpoint is where the streams of the driver arrive.
	Endpoint *channel.Endpoint

	listeners sync.Map // *listener by the id of its conversation

	lease  atomic.Int64 // nanoseconds
	spoken atomic.Bool  // something was heard since the last tick
	// requests since the last tick
	requests atomic.Int64
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
	s := &Server{
		config: config, bootID: hex.EncodeToString(id), slots: config.Slots, log: config.Log,
		began: time.Now(),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.Endpoint = channel.NewEndpoint(s.ctx, s, config.Base, s.bootID, s.log)
	s.lease.Store(int64(config.Lease))
	var err error
	s.exec, err = exec.New(s.ctx, s.slots, s.log)
	return s, err
}

// Run serves until the driver, the lease or end says that it is over, then
// ends everything that was started.
func (s *Server) Run() error {
	stop, err := s.Endpoint.Listen()
	if err != nil {
		return err
	}
	go s.keepLease()
	<-s.ctx.Done()
	stop()
	s.shutDown()
	return nil
}

// Protected says whether those inside the sandbox have no business with the
// runner's end: where it is process 1, and where one of them has the whole
// sandbox.
func (s *Server) Protected() bool { return os.Getpid() == 1 || s.slots.Whole() }

// End makes Run return after an orderly end.
func (s *Server) End(reason, message string) {
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
	if os.Getpid() == 1 { // else the root is that of a machine, which is not ours
		for _, problem := range leftover.Flatten("/", s.began, flattenTime) {
			s.log.Print("left behind: ", problem)
		}
	}
	s.Endpoint.Close(ctx, s.reason.reason, s.reason.message)
}

// Heard notes that something came from the driver.
func (s *Server) Heard() { s.spoken.Store(true) }

// Attached takes the lease of a driver that has a new stream.
func (s *Server) Attached(lease time.Duration) {
	s.lease.Store(int64(lease))
	s.Heard()
}

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
			s.End("lease", fmt.Sprintf("nothing was heard from the driver for %v", lease))
			return
		}
	}
}

// Begin carries out a request.
func (s *Server) Begin(c *channel.Conversation, m wire.RequestMessage) {
	s.requests.Add(1)
	result, err := s.guarded(c, m)
	if s.ctx.Err() != nil {
		return // GOODBYE says what happened; a half-ended answer would mislead
	}
	c.Respond(result, err)
}

func (s *Server) guarded(c *channel.Conversation, m wire.RequestMessage) (result any, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			s.log.Printf("%s: %v\n%s", m.Method, fault, debug.Stack())
			err = &wire.Error{Kind: "internal", Message: fmt.Sprint(fault)}
		}
	}()
	method := methods[m.Method]
	if method == nil {
		return nil, channel.BadRequest("unknown method %q", m.Method)
	}
	return method(s, c, m.Params)
}
