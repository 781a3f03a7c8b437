package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

const (
	stopTimeout = 20 * time.Second
	// unreadTimeout is how long the last messages of an ended agent may stay
	// unread.
	unreadTimeout = 10 * time.Second
	// endTimeout is how long an agent that was killed may take to end.
	endTimeout = unreadTimeout + 5*time.Second
)

// Plan is what an agent is started with.
type Config struct {
	Setup  isolation.Setup
	Method isolation.Method
	Scoped bool          // Landlock keeps abstract sockets and signals within the slot
	Exe    string        // this program
	Bwrap  string        // bubblewrap, where Way takes it
	Limit  time.Duration // how long it may take to get ready

	Env       []string          // the slot's base environment, KEY=VALUE
	Shell     string            // path of the best shell, "" when there is none
	Shells    map[string]string // what it is → its path
	Workspace string
	FIFOs     FIFOs
	Relief    *CPURelief

	// OnExit is called for each command that ended. It must not block.
	OnExit func(ipc.Exit)
	// Detach is called when the agent has ended; false: nobody used it yet, or any more.
	Detach func(*Agent) bool
	// OnDeath is called after that for an agent that was used and ended unasked.
	OnDeath func(why *ipc.Error)
}

// Agent is a running agent.
type Agent struct {
	Env       []string          // the slot's base environment, KEY=VALUE
	Shell     string            // path of the best shell, "" when there is none
	Shells    map[string]string // what it is → its path
	OpenFiles int64             // the limit of each of the slot's processes, 0 for none

	workdir atomic.Pointer[string]

	config Config
	conn   *ipc.Conn

	spawnLanes    lanes // lead to the threads that commands are forked from
	fileLanes     lanes // lead to those that have the slot's file system rights
	treeLanes     lanes // the same, for what may take long
	spillLanes    lanes // the same, for the output of commands
	process       *os.Process
	ended         chan struct{} // the process has been waited for
	endState      string
	deathError    *ipc.Error // how, as an answer; set with it
	oomKills      int64      // of the sandbox, when it was started
	stopRequested atomic.Bool
}

// Workdir is where commands start and relative paths begin: the workspace, or
// the last one set.
func (h *Agent) Workdir() string { return *h.workdir.Load() }

// StartIn sets it until the slot is reset. It is made where it is missing, with
// the slot's rights.
func (h *Agent) StartIn(ctx context.Context, path string) error {
	params, err := json.Marshal(map[string]any{"path": ipc.Bytes(path), "parents": true, "exist_ok": true})
	if err != nil {
		return err
	}
	if _, err := h.Call(ctx, ipc.OpFile, ipc.FileOp{Method: "file.mkdir", Params: params}, nil); err != nil {
		return err
	}
	h.workdir.Store(&path)
	return nil
}

// Call asks the agent (ipc.Conn.Call) on a lane for op, and gives an error of
// the protocol for one that is gone.
func (h *Agent) Call(ctx context.Context, op string, in, out any, fds ...int) ([]int, error) {
	switch op {
	case ipc.OpSpawn:
		defer h.config.Relief.Begin(slowStartAfter)()
	case ipc.OpKill, ipc.OpKillAll:
		defer h.config.Relief.Begin(slowKillAfter)()
	}
	conn := h.conn
	if lanes := h.lanesFor(op, in); lanes != nil {
		var err error
		if conn, err = lanes.acquire(ctx); err != nil {
			return nil, err
		}
	}
	got, err := conn.Call(ctx, op, in, out, fds...)
	if !errors.Is(err, ipc.ErrClosed) {
		return got, err
	}
	if h.stopRequested.Load() {
		return nil, failure("slot_closed", "the slot was reset or destroyed")
	}
	select {
	case <-h.ended:
		return nil, h.deathError
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lanesFor gives the lanes that an operation takes, nil for none.
func (h *Agent) lanesFor(op string, in any) *lanes {
	switch op {
	case ipc.OpSpawn:
		return &h.spawnLanes
	case ipc.OpFile:
		if f, ok := in.(ipc.FileOp); !ok || !singleFileMethods[f.Method] {
			return &h.treeLanes
		}
		return &h.fileLanes
	case ipc.OpListen:
		return &h.fileLanes
	case ipc.OpSpill:
		return &h.spillLanes
	}
	return nil
}

// group is how many of some lanes there are.
type laneGroup struct {
	*lanes
	n int
}

// groups lists the lanes in the order in which the agent gets them.
func (h *Agent) groups() []laneGroup {
	return []laneGroup{{&h.spawnLanes, spawnLaneCount}, {&h.fileLanes, fileLaneCount}, {&h.treeLanes, treeLaneCount},
		{&h.spillLanes, spillLaneCount}}
}

// EndError gives why the agent is no more, nil while it runs.
func (h *Agent) EndError() *ipc.Error {
	select {
	case <-h.ended:
		return h.deathError
	default:
		return nil
	}
}

// IsStopRequested says whether the agent's end is, or would be, what the runner asked for.
func (h *Agent) IsStopRequested() bool { return h.stopRequested.Load() }

// DeathError is how the agent has ended; Detach may ask for it.
func (h *Agent) DeathError() *ipc.Error { return h.deathError }

// Stop ends the agent and with it everything in the slot. Where it is init of a
// pid namespace its own end is the proof that nothing is left.
func (h *Agent) Stop(ctx context.Context) ipc.Receipt {
	defer h.config.Relief.Begin(slowKillAfter)()
	receipt, pids := ipc.Receipt{Handles: []string{}}, h.config.Setup.View.Pids
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	h.stopRequested.Store(true)
	_, err := h.conn.Call(ctx, isolation.OpStop, struct{}{}, &receipt)
	if err != nil && !pids {
		receipt.Left = max(receipt.Left, 1)
	}
	select {
	case <-h.ended:
	case <-time.After(time.Second):
		_ = h.Signal(os.Kill)
		select {
		case <-h.ended:
		case <-time.After(endTimeout):
			receipt.Left = max(receipt.Left, 1)
			return receipt
		}
	}
	if pids && receipt.Left > 0 {
		receipt.Killed += receipt.Left
		receipt.Left = 0
	}
	return receipt
}

// Signal signals the agent's process.
func (h *Agent) Signal(sig os.Signal) error { return h.process.Signal(sig) }

func failure(kind, format string, args ...any) error {
	return &ipc.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}
