package slots

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/ipc"
)

// How long healthy processes may take: some milliseconds, and a thousand times
// that in a box with a small share of the processors.
const (
	setupTimeout = 45 * time.Second // the driver gives a slot 60
	stopTimeout  = 20 * time.Second
	// unreadPatience is how long the last messages of an ended agent may stay
	// unread.
	unreadPatience = 10 * time.Second
	// endPatience is how long an agent that was killed may take to end.
	endPatience = unreadPatience + 5*time.Second
)

// Agent is a running agent.
type Agent struct {
	Env       []string          // the slot's base environment, KEY=VALUE
	Shell     string            // path of the best shell, "" when there is none
	Shells    map[string]string // what it is → its path
	OpenFiles int64             // the limit of each of the slot's processes, 0 for none

	workdir atomic.Pointer[string]

	slot     *slot
	uid, gid int // of the holder
	conn     *ipc.Conn

	spawning lanes // lead to the threads that commands are forked from
	filing   lanes // lead to those that have the slot's file system rights
	walking  lanes // the same, for what may take long
	spilling lanes // the same, for the output of commands
	process  *os.Process
	ended    chan struct{} // the process has been waited for
	how      string
	died     *ipc.Error // how, as an answer; set with it
	oomKills int64      // of the box, when it was started
	expected atomic.Bool
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

// Call asks the agent (ipc.Conn.Call) on the lane for op, and gives an error of
// the protocol for one that is gone.
func (h *Agent) Call(ctx context.Context, op string, in, out any, fds ...int) ([]int, error) {
	got, err := h.call(ctx, op, in, out, fds...)
	if !errors.Is(err, ipc.ErrClosed) {
		return got, err
	}
	if h.expected.Load() {
		return nil, failure("slot_closed", "the slot was reset or destroyed")
	}
	select {
	case <-h.ended:
		return nil, h.died
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// group is how many of some lanes there are.
type group struct {
	*lanes
	n int
}

// groups lists the lanes in the order in which the agent gets them.
func (h *Agent) groups() []group {
	return []group{{&h.spawning, spawnLanes}, {&h.filing, fileLanes}, {&h.walking, treeLanes},
		{&h.spilling, spillLanes}}
}

func (h *Agent) call(ctx context.Context, op string, in, out any, fds ...int) (got []int, err error) {
	switch op {
	case ipc.OpSpawn:
		h.slot.relieved(slowStart, func() { got, err = h.spawning.call(ctx, op, in, out, fds...) })
		return got, err
	case ipc.OpKill, ipc.OpKillAll:
		h.slot.relieved(slowKill, func() { got, err = h.conn.Call(ctx, op, in, out, fds...) })
		return got, err
	case ipc.OpFile:
		if f, ok := in.(ipc.FileOp); ok && single[f.Method] {
			return h.filing.call(ctx, op, in, out, fds...)
		}
		return h.walking.call(ctx, op, in, out, fds...)
	case ipc.OpListen:
		return h.filing.call(ctx, op, in, out, fds...)
	case ipc.OpSpill:
		return h.spilling.call(ctx, op, in, out, fds...)
	}
	return h.conn.Call(ctx, op, in, out, fds...)
}

func (h *Agent) expectEnd() { h.expected.Store(true) }

func (h *Agent) terminate() { _ = h.process.Kill() }

// agent returns the running agent or starts one. One that died is not replaced
// before the slot is reset.
func (s *slot) agent(ctx context.Context) (*Agent, error) {
	if h, _ := s.current(); h != nil {
		return h, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, failure("no_slot", "no slot %q", s.id)
	}
	h, died := s.current()
	switch {
	case h != nil:
		return h, nil
	case died != nil:
		return nil, died
	}
	return s.start(ctx)
}

// current is the running agent, or why the last one ended unexpectedly, or
// neither.
func (s *slot) current() (*Agent, *ipc.Error) {
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	return s.live, s.died
}
