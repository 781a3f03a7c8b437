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

// Start starts an agent that the slot does not use yet. again means that the caller may try once
// more: there may be room for its threads now, and otherwise the second error names the missing
// resource.
func Start(ctx context.Context, plan Config) (h *Agent, again bool, err error) {
	if h, err = launch(plan); err != nil {
		kind := Refusal(err)
		return nil, false, failure(kind, "the slot's agent cannot be started: %v%s", err, processLimit(kind))
	}
	ctx, cancel := context.WithTimeout(ctx, plan.Limit)
	defer cancel()
	if err := h.setUp(ctx); err != nil {
		h.stopRequested.Store(true)
		_ = h.Signal(os.Kill)
		<-h.ended
		var e *ipc.Error
		if errors.As(err, &e) {
			return nil, false, e
		}
		if h.endState == crashState {
			return nil, true, failure("exhausted",
				"the slot's agent did not get ready: its runtime gave up, as without memory or threads (%s)%s",
				h.endState, processLimit("exhausted"))
		}
		if ctx.Err() != nil { // also when the driver has cancelled a command whose time was over meanwhile
			err = errSlowSetup
		}
		// Neither the time nor the signal proves anything about the sandbox.
		return nil, false, failure("exhausted", "the slot's agent did not get ready: %v (%s)", err, h.endState)
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

// launch starts the agent's process and reads its link.
func launch(plan Config) (*Agent, error) {
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
		p, err := onStarter(func() (*os.Process, error) { return plan.begin(null, theirs) })
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
		Env: plan.Env, Shell: plan.Shell, Shells: plan.Shells, config: plan, conn: conn, process: process,
		oomKills: oomKills(), ended: make(chan struct{}),
	}
	h.workdir.Store(&plan.Workspace)
	if limit := plan.Setup.Limits.OpenFiles; limit != nil {
		h.OpenFiles = *limit
	}
	linkDown := make(chan struct{})
	go func() {
		defer close(linkDown)
		_ = conn.Run(nil, h.event)
	}()
	go h.watch(linkDown)
	return h, nil
}
