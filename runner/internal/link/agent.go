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
	// unreadTimeout is how long the last messages of an ended agent may stay unread.
	unreadTimeout = 10 * time.Second
	// endTimeout is how long a killed agent may take to end.
	endTimeout = unreadTimeout + 5*time.Second
)

// Config is the configuration with which an agent is started.
type Config struct {
	Setup  isolation.Setup
	Method isolation.Method
	Domain isolation.Domain // what Landlock restricts
	Exe    string           // this program
	Bwrap  string           // bubblewrap, if Method is MethodBwrap
	Limit  time.Duration    // how long it may take to get ready

	Env       []string          // the slot's base environment, KEY=VALUE
	Shell     string            // path of the best shell, "" if there is none
	Shells    map[string]string // name of the shell → its path
	Workspace string
	FIFOs     FIFOs
	Disk      *os.File // the mount of a slot's disk in a file, or nil
	Relief    *CPURelief

	// OnExit is called for each command that ended. It must not block.
	OnExit func(ipc.Exit)
	// Detach is called when the agent has ended. It returns false if the slot did not use the agent
	// yet, or no longer.
	Detach func(*Agent) bool
	// OnDeath is called after Detach for an agent that was in use and ended unexpectedly.
	OnDeath func(why *ipc.Error)
}

// Agent is a running agent.
type Agent struct {
	Env       []string          // the slot's base environment, KEY=VALUE
	Shell     string            // path of the best shell, "" if there is none
	Shells    map[string]string // name of the shell → its path
	OpenFiles int64             // the limit of each of the slot's processes, 0 for none

	workdir atomic.Pointer[string]

	config Config
	conn   *ipc.Conn

	spawnLanes    lanes // to the threads that fork commands
	fileLanes     lanes // to threads with the slot's file system rights
	treeLanes     lanes // the same, for operations that may take long
	spillLanes    lanes // the same, for the output of commands
	process       *os.Process
	ended         chan struct{} // closed when the process was waited for
	endState      string
	deathError    *ipc.Error // endState as an error; set with it
	oomKills      int64      // of the sandbox, at the start
	stopRequested atomic.Bool
}

// Workdir returns where commands start and relative paths begin: the workspace, or the last
// directory set by StartIn.
func (h *Agent) Workdir() string { return *h.workdir.Load() }

// StartIn sets the working directory until the slot is reset. If it is missing, it is made with the
// slot's rights.
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

// SetWorkdir sets the working directory of an agent that takes over from another.
func (h *Agent) SetWorkdir(path string) { h.workdir.Store(&path) }

// Call sends a request to the agent (ipc.Conn.Call) on a lane for op. If the agent has ended, it
// returns an error of the protocol.
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

// lanesFor returns the lanes for an operation, or nil.
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

// laneGroup is a set of lanes with its size.
type laneGroup struct {
	*lanes
	n int
}

// groups lists the lanes in the order in which the agent gets them.
func (h *Agent) groups() []laneGroup {
	return []laneGroup{{&h.spawnLanes, spawnLaneCount}, {&h.spillLanes, spillLaneCount},
		{&h.treeLanes, treeLaneCount}, {&h.fileLanes, fileLaneCount}}
}

// EndError returns why the agent has ended, nil while it runs.
func (h *Agent) EndError() *ipc.Error {
	select {
	case <-h.ended:
		return h.deathError
	default:
		return nil
	}
}

// IsStopRequested reports whether the runner has asked the agent to end.
func (h *Agent) IsStopRequested() bool { return h.stopRequested.Load() }

// DeathError returns how the agent has ended; Detach may call it.
func (h *Agent) DeathError() *ipc.Error { return h.deathError }

// Stop ends the agent and everything in the slot. If the agent is the first process of a pid
// namespace, its end proves that nothing is left.
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
