package slots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// How long processes that are all right may take: some milliseconds, and a
// thousand times that in a box whose share of the processors is small.
const (
	setupTimeout = 45 * time.Second // the driver gives a slot 60
	stopTimeout  = 20 * time.Second
	// unreadPatience is how long what an agent has said may be unread when it
	// has ended.
	unreadPatience = 10 * time.Second
	// endPatience is how long an agent that was killed may take to be gone.
	endPatience = unreadPatience + 5*time.Second
)

// Agent is a running agent.
type Agent struct {
	Env       []string // the slot's base environment, KEY=VALUE
	Workspace string
	Shell     string            // path of the best shell, "" when there is none
	Shells    map[string]string // what it is → its path
	OpenFiles int64             // the limit of each of the slot's processes, 0 for none

	slot *slot
	conn *ipc.Conn

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

func (h *Agent) call(ctx context.Context, op string, in, out any, fds ...int) ([]int, error) {
	switch op {
	case ipc.OpSpawn:
		return h.spawning.call(ctx, op, in, out, fds...)
	case ipc.OpFile:
		if f, ok := in.(ipc.FileOp); ok && single[f.Method] {
			return h.filing.call(ctx, op, in, out, fds...)
		}
		return h.walking.call(ctx, op, in, out, fds...)
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

// current is the running agent, or why the last one ended unasked, or neither.
func (s *slot) current() (*Agent, *ipc.Error) {
	s.handleMu.Lock()
	defer s.handleMu.Unlock()
	return s.handle, s.died
}

// start makes a new agent the slot's; mu is held. One that found no room for
// its threads is started once more: the room may be there again, and then
// nothing would tell why it failed.
func (s *slot) start(ctx context.Context) (*Agent, error) {
	h, again, err := s.boot(ctx)
	if again {
		h, _, err = s.boot(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.handleMu.Lock()
	defer s.handleMu.Unlock()
	select {
	case <-h.ended:
		return nil, h.died
	default:
	}
	s.handle, s.died = h, nil
	return h, nil
}

// crash is how an agent ends that its own runtime gives up.
const crash = "exit status 2"

// boot starts an agent that nobody uses yet; again says that it may be tried
// once more.
func (s *slot) boot(ctx context.Context) (h *Agent, again bool, err error) {
	if h, err = s.launch(); err != nil {
		return nil, false, failure(whyNot(err), "the slot's init cannot be started: %v", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.m.setupTimeout, errSlowSetup)
	defer cancel()
	if err := s.setUp(ctx, h); err != nil {
		h.expectEnd()
		h.terminate()
		<-h.ended
		var e *ipc.Error
		if errors.As(err, &e) {
			return nil, false, e
		}
		if h.how == crash {
			return nil, true, failure("exhausted",
				"the slot's init did not get ready: its runtime gave up, as without memory or threads (%s)", h.how)
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, false, failure(whyNot(err), "the slot's init did not get ready: %v (%s)", err, h.how)
	}
	return h, false, nil
}

var errSlowSetup = errors.New("it took too long: the box may have too little of the processors")

// whyNot tells a box that is full from one in which an agent cannot be had.
func whyNot(err error) string {
	for _, lack := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, lack) {
			return "exhausted"
		}
	}
	if boxFull() {
		return "exhausted" // it could not make its threads
	}
	return "isolation"
}

// setUp makes the lanes and has the agent prepare itself.
func (s *slot) setUp(ctx context.Context, h *Agent) error {
	var fds []int
	for _, group := range h.groups() {
		theirs, err := group.open(h.conn, group.n)
		defer closeFiles(theirs)
		if err != nil {
			return err
		}
		for _, file := range theirs {
			fds = append(fds, int(file.Fd()))
		}
	}
	s.setup.SpawnLanes = spawnLanes
	var ready isolation.Ready
	_, err := h.conn.Call(ctx, isolation.OpSetup, s.setup, &ready, fds...)
	return err
}

// launch starts the agent's process and the reading of its link.
func (s *slot) launch() (*Agent, error) {
	ours, theirs, err := ipc.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer null.Close()
	var process *os.Process
	_, err = initproc.Own(func() (int, error) {
		p, err := onStarter(func() (*os.Process, error) { return s.begin(null, theirs) })
		if err != nil {
			return 0, err
		}
		process = p
		return p.Pid, nil
	})
	if err != nil {
		ours.Close()
		return nil, err
	}
	conn, err := ipc.New(ours)
	if err != nil {
		_ = process.Kill()
		_, _ = process.Wait()
		initproc.Disown(process.Pid)
		return nil, err
	}
	h := &Agent{
		slot: s, conn: conn, Env: s.env, Workspace: string(s.facts.Workspace), Shells: s.facts.Shells,
		process: process, oomKills: oomKills(), ended: make(chan struct{}),
	}
	if s.facts.Shell != nil {
		h.Shell = h.Shells[*s.facts.Shell]
	}
	if limit := s.setup.Limits.OpenFiles; limit != nil {
		h.OpenFiles = *limit
	}
	linkDown := make(chan struct{})
	go func() {
		defer close(linkDown)
		_ = conn.Run(nil, func(op string, body json.RawMessage) { s.event(op, body) })
	}()
	go s.watch(h, linkDown)
	return h, nil
}

func (s *slot) event(op string, body json.RawMessage) {
	if op != ipc.EventExit {
		return
	}
	var e ipc.Exit
	if err := ipc.Decode(body, &e); err != nil {
		fmt.Fprintln(os.Stderr, "runner: bad exit event:", err)
		return
	}
	s.m.onExit(s.id, e)
}

// watch waits for the agent's end. Exits that were on their way are delivered
// before the death is.
func (s *slot) watch(h *Agent, linkDown <-chan struct{}) {
	// A wait of its own would hold a thread for each slot.
	<-initproc.Ended(h.process.Pid)
	state, err := h.process.Wait()
	initproc.Disown(h.process.Pid)
	h.how = describeEnd(state, err)
	oom := wasKilled(state) && oomKills() > h.oomKills
	if oom {
		h.how += ", out of memory"
	}
	h.died = &ipc.Error{
		Kind: "slot_died", Message: fmt.Sprintf("the slot's init has ended (%s); reset the slot", h.how),
		Detail: map[string]bool{"oom": oom, "whole_box": s.setup.Level == isolation.Box},
	}
	select {
	case <-linkDown:
	case <-time.After(unreadPatience):
		// A process of the slot that holds the link open cannot exist, but a
		// reader that is stuck must not keep the end from being told.
		h.conn.Close()
	}
	s.handleMu.Lock()
	current := s.handle == h
	if current {
		s.handle = nil
		if !h.expected.Load() {
			s.died = h.died
		}
	}
	s.handleMu.Unlock()
	for _, group := range h.groups() {
		group.close()
	}
	close(h.ended)
	if current && !h.expected.Load() {
		s.m.onDeath(s.id, h.died)
	}
}

func wasKilled(state *os.ProcessState) bool {
	if state == nil {
		return false
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

func describeEnd(state *os.ProcessState, err error) string {
	if err != nil {
		return "unknown: " + err.Error()
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return fmt.Sprintf("killed by signal %d (%s)", int(ws.Signal()), ws.Signal())
	}
	return state.String()
}
