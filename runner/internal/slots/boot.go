package slots

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// start makes a new agent the slot's; mu is held. One that found no room for
// its threads is started once more: there may be room again, and then the error
// could not say what was missing.
func (s *slot) start(ctx context.Context) (*Agent, error) {
	h, again, err := s.boot(ctx)
	if again {
		h, _, err = s.boot(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.liveMu.Lock()
	defer s.liveMu.Unlock()
	select {
	case <-h.ended:
		return nil, h.died
	default:
	}
	s.live, s.died = h, nil
	return h, nil
}

// crash is how an agent ends that the Go runtime has aborted.
const crash = "exit status 2"

// boot starts an agent that nobody uses yet; again says that it may be tried
// once more.
func (s *slot) boot(ctx context.Context) (h *Agent, again bool, err error) {
	if s.setup.View.Layer != "" {
		if err := s.freshLayer(); err != nil {
			return nil, false, failure(refusal(err), "the slot's layer cannot be made: %v", err)
		}
	}
	if h, err = s.launch(); err != nil {
		return nil, false, failure(refusal(err), "the slot's init cannot be started: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.m.setupTimeout)
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
		if ctx.Err() != nil { // also where the driver has given up a command whose time was over meanwhile
			err = errSlowSetup
		}
		// The time that it took and the signal that ended it say nothing about what the box allows.
		return nil, false, failure("exhausted", "the slot's init did not get ready: %v (%s)", err, h.how)
	}
	return h, false, nil
}

var errSlowSetup = errors.New("it took too long: the box may have too little of the processors")

// refusal returns the kind of an error of the kernel: "exhausted" where the same
// may succeed later, "isolation" where the box does not allow it.
func refusal(err error) string {
	if ipc.Lacks(err) || boxFull() { // without room for processes it could not make its threads
		return "exhausted"
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
		slot: s, uid: int(s.setup.UID), gid: int(s.setup.GID), conn: conn, Env: s.env, Shells: s.facts.Shells,
		process: process, oomKills: oomKills(), ended: make(chan struct{}),
	}
	workspace := string(s.facts.Workspace)
	h.workdir.Store(&workspace)
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
