package link

import (
	"context"
	"errors"
	"os"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/pipe"
)

// crashState is the end of an agent that the Go runtime has aborted.
const crashState = "exit status 2"

// Start gives a slot to an agent that waits for one, or to a new one if waiting is nil. The slot does not
// use it yet. again means that the caller may try once more, with a new one: there may be room for its
// threads now, and otherwise the second error names the missing resource.
func Start(ctx context.Context, plan Config, waiting *Waiting) (h *Agent, again bool, err error) {
	prepared := waiting != nil
	if !prepared {
		if waiting, err = launch(plan); err != nil {
			kind := Refusal(err)
			return nil, false, failure(kind, "the slot's agent cannot be started: %v%s", err, processLimit(kind))
		}
	}
	h = newAgent(plan, waiting)
	ctx, cancel := context.WithTimeout(ctx, plan.Limit)
	defer cancel()
	if err := h.setUp(ctx); err != nil {
		h.stopRequested.Store(true)
		_ = h.Signal(os.Kill)
		<-h.ended
		var e *ipc.Error
		if errors.As(err, &e) {
			return nil, prepared, e
		}
		if h.endState == crashState {
			return nil, true, failure("exhausted",
				"the slot's agent did not get ready: its runtime gave up, as without memory or threads (%s)%s",
				h.endState, processLimit("exhausted"))
		}
		if ctx.Err() != nil { // also when the driver has cancelled a command whose time was over meanwhile
			err, prepared = errSlowSetup, false
		}
		// Neither the time nor the signal proves anything about the sandbox.
		return nil, prepared, failure("exhausted", "the slot's agent did not get ready: %v (%s)", err, h.endState)
	}
	return h, false, nil
}

var errSlowSetup = errors.New("it took too long: the sandbox may have too little processor time")

// Refusal returns the kind of an error of the kernel: "exhausted" if the same may succeed later,
// "isolation" if the sandbox does not allow it.
func Refusal(err error) string {
	if ipc.IsShortage(err) || isSandboxFull() { // without room for processes it could not make its threads
		return "exhausted"
	}
	return "isolation"
}

// setUp makes the lanes and has the agent prepare itself.
func (h *Agent) setUp(ctx context.Context) error {
	var fds []int
	for _, group := range h.groups() {
		theirs, err := group.open(h.conn, group.n)
		defer pipe.CloseFiles(theirs)
		if err != nil {
			return err
		}
		for _, file := range theirs {
			fds = append(fds, int(file.Fd()))
		}
	}
	if h.config.Disk != nil {
		fds = append(fds, int(h.config.Disk.Fd()))
	}
	h.config.Setup.SpawnLanes = spawnLaneCount
	var ready isolation.Ready
	_, err := h.conn.Call(ctx, isolation.OpSetup, h.config.Setup, &ready, fds...)
	return err
}

// Waiting is the process of an agent that has no slot yet.
type Waiting struct {
	conn    *ipc.Conn
	process *os.Process
	ended   chan struct{} // closed when the process was waited for
	state   *os.ProcessState
	err     error
}

// launch starts the process of an agent.
func launch(plan Config) (*Waiting, error) {
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
	w := &Waiting{ended: make(chan struct{})}
	_, err = initproc.Own(func() (int, error) {
		p, err := onStarter(func() (*os.Process, error) { return plan.begin(null, theirs) })
		if err != nil {
			return 0, err
		}
		w.process = p
		return p.Pid, nil
	})
	if err != nil {
		ours.Close()
		return nil, err
	}
	if w.conn, err = ipc.New(ours); err != nil {
		_ = w.process.Kill()
		_, _ = w.process.Wait()
		initproc.Disown(w.process.Pid)
		return nil, err
	}
	go w.wait()
	return w, nil
}

// wait reaps the process.
func (w *Waiting) wait() {
	// A wait of its own would block a thread for each slot.
	<-initproc.OnEnd(w.process.Pid)
	w.state, w.err = w.process.Wait()
	initproc.Disown(w.process.Pid)
	close(w.ended)
}

// newAgent makes a waiting process the agent of a slot.
func newAgent(plan Config, w *Waiting) *Agent {
	h := &Agent{
		Env: plan.Env, Shell: plan.Shell, Shells: plan.Shells, config: plan, conn: w.conn, process: w.process,
		oomKills: oomKills(), ended: make(chan struct{}),
	}
	h.workdir.Store(&plan.Workspace)
	if limit := plan.Setup.Limits.OpenFiles; limit != nil {
		h.OpenFiles = *limit
	}
	linkDown := make(chan struct{})
	go func() {
		defer close(linkDown)
		_ = h.conn.Run(nil, h.event)
	}()
	go h.watch(w, linkDown)
	return h
}
