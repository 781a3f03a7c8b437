package serve

import (
	"cmp"
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

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/exec"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/leftover"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

const (
	// maxTick bounds how much silence one tick may add, so that the lease of a paused sandbox does
	// not expire at once.
	maxTick = 2 * time.Second
	// firstContactTimeout is how long an unclaimed runner waits for its driver.
	firstContactTimeout = 60 * time.Second
	closeTimeout        = 10 * time.Second
	// flattenTimeout bounds the search for directories that the engine of a container could not
	// remove.
	flattenTimeout = 10 * time.Second
)

// Config is the configuration of a Server.
type Config struct {
	Base      string        // directory of this runner; the socket is below it
	Roots     []string      // directories that end with the sandbox: its root, and mounts of the engine
	Lease     time.Duration // until the first HELLO sets another; 0: 60 s
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
	exec    *exec.Runner
	log     *log.Logger
	began   time.Time
	memory  *budget.Budget
	trimmer *initproc.IdleTrimmer
	ctx     context.Context // ends with the server
	cancel  context.CancelCauseFunc
	// Endpoint accepts the streams of the driver.
	Endpoint *channel.Endpoint

	listeners sync.Map // *listener by the id of its conversation

	lease  atomic.Int64 // nanoseconds
	active atomic.Bool  // a frame arrived since the last tick
	once   sync.Once
	reason goodbyeReason
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
		config.Lease = firstContactTimeout
	}
	s := &Server{
		config: config, bootID: hex.EncodeToString(id), slots: config.Slots, log: config.Log,
		began: time.Now(),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.memory, s.trimmer = budget.New(budget.DefaultLimit, initproc.FreeMemory), initproc.NewIdleTrimmer()
	setBudget(s.memory, budget.DefaultLimit)
	s.Endpoint = channel.NewEndpoint(s.ctx, s, config.Base, s.bootID, s.memory, s.log)
	s.lease.Store(int64(config.Lease))
	var err error
	s.exec, err = exec.New(s.ctx, s.slots, s.memory, s.log)
	return s, err
}

// Run serves until the driver or the lease ends it, or End is called. Then it ends everything that
// was started.
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

// IsProtected reports whether processes inside the sandbox must not end the runner: if it is
// process 1, or if a slot has the whole sandbox.
func (s *Server) IsProtected() bool { return os.Getpid() == 1 || s.slots.IsExclusive() }

// End makes Run return after an orderly end.
func (s *Server) End(reason, message string) {
	s.once.Do(func() {
		s.reason = goodbyeReason{reason, message}
		s.log.Printf("ending: %s: %s", reason, message)
		s.cancel(&wire.Error{Kind: "canceled", Message: "the runner ends: " + message})
	})
}

func (s *Server) shutDown() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	receipt := s.slots.Close(ctx)
	if receipt.Left > 0 {
		s.log.Printf("%d processes are left", receipt.Left)
	}
	until := time.Now().Add(flattenTimeout)
	for _, root := range s.config.Roots {
		for _, problem := range leftover.Flatten(root, s.began, time.Until(until)) {
			s.log.Print("left behind: ", problem)
		}
	}
	s.Endpoint.Close(ctx, s.reason.reason, s.reason.message)
}

// NoteActivity records that something came from the driver.
func (s *Server) NoteActivity() { s.active.Store(true) }

// ApplyHello takes the lease and the budget from a driver with a new stream.
func (s *Server) ApplyHello(hello wire.HelloMessage) {
	s.lease.Store(int64(hello.LeaseS * float64(time.Second)))
	setBudget(s.memory, cmp.Or(hello.MemoryBytes, budget.DefaultLimit))
	s.NoteActivity()
}

// baseMemorySize is the memory of the runner besides its budget.
const baseMemorySize = 48 << 20

// setBudget sets the size of a budget, within the memory of the sandbox.
func setBudget(b *budget.Budget, bytes int64) {
	sandbox := int64(0)
	if limit := readMemoryFacts().LimitBytes; limit != nil {
		sandbox = *limit
	}
	b.Resize(bytes, sandbox)
	debug.SetMemoryLimit(b.Limit() + baseMemorySize)
}

func (s *Server) keepLease() {
	silence := time.Duration(0)
	last := time.Now()
	for {
		lease := time.Duration(s.lease.Load())
		timer := time.NewTimer(max(min(lease/8, maxTick), time.Millisecond))
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return
		}
		now := time.Now()
		silence += min(now.Sub(last), maxTick)
		last = now
		if s.active.Swap(false) {
			silence = 0
		}
		if lease = time.Duration(s.lease.Load()); silence >= lease {
			s.End("lease", fmt.Sprintf("no frame came from the driver for %v", lease))
			return
		}
	}
}

// Begin carries out a request.
func (s *Server) Begin(c *channel.Conversation, m wire.RequestMessage) {
	s.trimmer.Touch()
	result, err := s.callMethod(c, m)
	if s.ctx.Err() != nil {
		return // GOODBYE reports the end; a half-ended answer would mislead
	}
	c.Respond(result, err)
}

func (s *Server) callMethod(c *channel.Conversation, m wire.RequestMessage) (result any, err error) {
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
