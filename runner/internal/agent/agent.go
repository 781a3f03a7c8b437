package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"hermes-exec/runner/internal/accounts"
	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/tenants"
	"hermes-exec/runner/internal/threads"
)

const linkFD = 3

// slotThreads are about the threads that an agent needs for its slot. It makes them before it has one.
const slotThreads = 17

// agent serves one slot.
type agent struct {
	conn  *ipc.Conn
	lanes []*ipc.Conn     // one for each thread that is prepared for work of the slot
	gates []chan struct{} // closed when the lane opens
	ready atomic.Bool

	setup   isolation.Setup
	user    accounts.User   // of the slot
	table   *children.Table // the commands
	tenants *tenants.Tenants
	pause   tenants.Pause
	trimmer *initproc.IdleTrimmer
	platform

	// closing is locked for reading by a fork, and for writing while no new process may appear.
	closing  sync.RWMutex
	stopping bool
}

// Main runs the `agent` subcommand and returns its exit code.
func Main(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case isolation.EnterArg:
			return isolation.Enter(args[1:])
		case isolation.ProbeArg:
			return isolation.ProbeChild("")
		case isolation.OwnRootArg:
			return isolation.ProbeChild(args[1])
		case isolation.NoopArg:
			return 0
		case isolation.ScopeArg:
			err := isolation.Scope(args[1], []string{"runner", "agent"})
			fmt.Fprintln(os.Stderr, "runner agent:", err)
			return 1
		}
	}
	if len(args) != 0 {
		fmt.Fprintln(os.Stderr, "runner agent is started by runner serve")
		return 2
	}
	initproc.UsePreciseTimers()
	initproc.ResetChildSignal()
	a := &agent{}
	a.begin()
	initproc.Init(initproc.Options{Procs: 3, GCPercent: 25, Memory: 32 << 20, Subreaper: true})
	if os.Getpid() != 1 { // the first process of a pid namespace ignores all signals when it is ready
		initproc.HandleSignals()
	}
	syscall.CloseOnExec(linkFD)
	conn, err := ipc.New(os.NewFile(linkFD, "link"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner agent:", err)
		return 1
	}
	a.conn = conn
	a.table = children.NewTable(func(exit ipc.Exit) { _ = conn.Event(ipc.EventExit, exit) })
	initproc.ReserveThreads(slotThreads)
	_ = conn.Run(a.handle, nil)
	// The serving runner has ended, and nothing of the slot may outlive it.
	if a.ready.Load() {
		a.stop()
	}
	return 0
}

var errNotSetUp = &ipc.Error{Kind: "internal", Message: "the agent is not set up"}

func (a *agent) handle(ctx context.Context, op string, m *ipc.Message) (any, []int, error) {
	defer m.CloseFDs()
	if op == isolation.OpSetup {
		return a.setUp(m)
	}
	if !a.ready.Load() {
		return nil, nil, errNotSetUp
	}
	defer a.trimmer.Touch()
	switch op {
	case ipc.OpKill:
		return answer(m, a.tenants.Kill)
	case ipc.OpSignal:
		return answer(m, a.tenants.Signal)
	case ipc.OpKillAll:
		return a.tenants.KillAll(), nil, nil
	case isolation.OpStop:
		return stopReply{a.stop()}, nil, nil
	case ipc.OpPause:
		return struct{}{}, nil, a.pause.Begin(a.tenants)
	case ipc.OpResume:
		a.pause.End(a.tenants)
		return struct{}{}, nil, nil
	case ipc.OpProcesses:
		return a.tenants.Processes(), nil, nil
	case ipc.OpTransient:
		return a.tenants.Transient(), nil, nil
	case ipc.OpRemovedFiles:
		return a.tenants.MeasureOpenFiles(), nil, nil
	case ipc.OpConnect:
		return answerWithFDs(m, func(c ipc.Connect) (any, []int, error) { return descriptorReply(pipe.Dial(ctx, c)) })
	case ipc.OpListenTCP:
		return answerWithFDs(m, func(l ipc.ListenTCP) (any, []int, error) {
			return descriptorReply(pipe.ListenTCP(ctx, l))
		})
	}
	return nil, nil, &ipc.Error{Kind: "bad_request", Message: "unknown operation " + strconv.Quote(op)}
}

// setUp prepares the slot. The descriptors are lanes: first the lanes of the threads that fork
// commands, then the lanes for files. The last one is the slot's disk, if that is in a file.
func (a *agent) setUp(m *ipc.Message) (any, []int, error) {
	return answer(m, func(s isolation.Setup) (isolation.Ready, error) {
		if d, last := s.View.Disk, len(m.FDs)-1; d != nil && d.InFile {
			if last < 0 {
				return isolation.Ready{}, badRequest(errors.New("the descriptor of the disk is missing"))
			}
			d.FD, m.FDs = m.FDs[last], m.FDs[:last]
		}
		for _, fd := range m.FDs {
			a.lanes = append(a.lanes, a.conn.AcceptLane(fd))
		}
		m.FDs = nil
		return a.prepare(s)
	})
}

// startLanes starts a prepared thread for each lane, which serves from openLanes on.
func (a *agent) startLanes(forSpawn, forFiles func() error) error {
	a.setup.SpawnLanes = min(a.setup.SpawnLanes, len(a.lanes))
	n := a.setup.SpawnLanes
	a.gates = make([]chan struct{}, len(a.lanes))
	for i := range a.gates {
		a.gates[i] = make(chan struct{})
	}
	serve := func(from, to int, prepare func() error) error {
		return threads.Start(to-from, prepare, func(i int) {
			<-a.gates[from+i]
			_ = a.lanes[from+i].Serve(a.handleLane)
		})
	}
	if err := serve(0, n, forSpawn); err != nil {
		return err
	}
	return serve(n, len(a.lanes), forFiles)
}

// lanePause is about how long a thread that begins to wait keeps a processor of the Go runtime.
const lanePause = 2 * time.Millisecond

// openLanes opens the lanes for commands at once and the others one after the other, the last first.
//
// Not the obvious code: see docs/why-not-obvious.md ("Lanes opened one by one").
func openLanes(commands, others []chan struct{}) {
	for _, gate := range commands {
		close(gate)
	}
	go func() {
		for _, gate := range slices.Backward(others) {
			time.Sleep(lanePause)
			close(gate)
		}
	}()
}

func (a *agent) handleLane(ctx context.Context, op string, m *ipc.Message) (any, []int, error) {
	defer m.CloseFDs()
	if !a.ready.Load() {
		return nil, nil, errNotSetUp
	}
	defer a.trimmer.Touch()
	switch op {
	case ipc.OpSpawn:
		return a.spawn(m)
	case ipc.OpFile:
		return answerWithFDs(m, func(f ipc.FileOp) (any, []int, error) { return a.doFile(ctx, f, m) })
	case ipc.OpSpill:
		return answerWithFDs(m, func(s ipc.Spill) (any, []int, error) { return createSpill(a.setup.Tmp, s) })
	case ipc.OpListen:
		return answerWithFDs(m, func(l ipc.Listen) (any, []int, error) { return descriptorReply(pipe.Listen(l)) })
	}
	return nil, nil, &ipc.Error{Kind: "bad_request", Message: "no lane is for " + strconv.Quote(op)}
}

// stopReply ends the agent once its receipt is on the way.
type stopReply struct{ ipc.Receipt }

func (stopReply) AfterReply() { syscall.Exit(0) }

func answer[In, Out any](m *ipc.Message, do func(In) (Out, error)) (any, []int, error) {
	return answerWithFDs(m, func(in In) (any, []int, error) {
		out, err := do(in)
		if err != nil {
			return nil, nil, err
		}
		return out, nil, nil
	})
}

// answerWithFDs decodes the request of a message and returns the reply of do, which may have
// descriptors.
func answerWithFDs[In any](m *ipc.Message, do func(In) (any, []int, error)) (any, []int, error) {
	var in In
	if err := ipc.Decode(m.Body, &in); err != nil {
		return nil, nil, badRequest(err)
	}
	return do(in)
}

// descriptorReply returns a reply that consists of a descriptor.
func descriptorReply(fd int, err error) (any, []int, error) {
	if err != nil {
		return nil, nil, err
	}
	return struct{}{}, []int{fd}, nil
}

func badRequest(err error) error { return &ipc.Error{Kind: "bad_request", Message: err.Error()} }

// refuseSpawns makes every later spawn fail and waits for spawns under way.
func (a *agent) refuseSpawns() {
	a.closing.Lock()
	a.stopping = true
	a.closing.Unlock()
}

func (a *agent) stop() ipc.Receipt {
	a.refuseSpawns()
	return a.tenants.KillAll()
}
