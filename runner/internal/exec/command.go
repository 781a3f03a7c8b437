package exec

import (
	"os"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

const (
	// killGrace is the time between TERM and KILL, in seconds.
	killGrace = 0.5
	// killTime bounds the wait for a receipt; the agent answers within 4 s.
	killTime = 5 * time.Second
	// afterKill is how long the report of the exit may take once nothing is left.
	afterKill = time.Second
)

// launch describes a process to start.
type launch struct {
	token uint64
	argv  []ipc.Bytes
	env   []ipc.Bytes
	cwd   string
	user  string
	pty   *ipc.PTY
	merge bool // stderr into stdout
	stdin bool // a pipe; else /dev/null
	extra []*os.File
	saved *pump // takes the state that a session's shell saves; nil: none
	hold  bool  // the reply may wait for its exit, which most likely comes soon
}

// command is a started process with our ends of its pipes.
type command struct {
	slot    *Slot
	token   uint64
	spawned ipc.Spawned
	stdin   *os.File // nil: /dev/null
	stdout  *pipe.Source
	stderr  *pipe.Source // nil when merged, or on a terminal
	exit    <-chan ipc.Exit
	started time.Time
	held    bool // holdTime is over
}

// start makes the pipes and has the agent fork. It fails with an error only
// when nothing can be said about the program itself.
func (r *Runner) start(slot *Slot, agent *slots.Agent, l launch) (*command, error) {
	cmd, err := r.startIn(slot, agent, l)
	if workdir := agent.Workdir(); err != nil && l.cwd == workdir && cannotEnter(err, workdir) &&
		agent.StartIn(slot.ctx, workdir) == nil {
		return r.startIn(slot, agent, l) // a tenant had removed it
	}
	return cmd, err
}

func (r *Runner) startIn(slot *Slot, agent *slots.Agent, l launch) (*command, error) {
	cmd := &command{slot: slot, token: l.token}
	var theirs []int
	defer func() { pipe.CloseFDs(theirs) }()
	if err := cmd.pipes(l, &theirs); err != nil {
		cmd.closePipes()
		return nil, err
	}
	var fds []int
	if l.pty == nil {
		fds = childFDs(l, theirs, int(r.devNull.Fd()))
	}
	for _, f := range l.extra {
		fds = append(fds, int(f.Fd()))
	}
	cmd.exit = r.expectExit(l.token)
	request := spawnRequest{theirs: &theirs}
	request.Spawn = ipc.Spawn{Token: l.token, Argv: l.argv, Env: l.env, Cwd: ipc.Bytes(l.cwd), User: l.user, PTY: l.pty}
	if l.hold {
		request.HoldMS = int(holdTime / time.Millisecond)
	}
	// A start is never cancelled halfway: what may run must be known.
	got, err := agent.Call(slot.ctx, ipc.OpSpawn, request, &cmd.spawned, fds...)
	cmd.started = time.Now().Add(-time.Duration(cmd.spawned.RanS * float64(time.Second)))
	if err != nil && ipc.AsError(err).Kind == "too_large" {
		// Far above the limit of the system, which is not even asked.
		cmd.spawned, err = ipc.Spawned{ExitCode: 126, Reason: "argument list too long"}, nil
	}
	if err != nil || !cmd.spawned.Started {
		r.forgetExit(l.token)
		pipe.CloseFDs(got)
	}
	if cmd.held = l.hold; cmd.spawned.Exit != nil {
		r.exited(*cmd.spawned.Exit)
	}
	if err != nil {
		cmd.closePipes()
		return nil, slot.startError(err)
	}
	if l.pty != nil && cmd.spawned.Started {
		if len(got) != 1 {
			pipe.CloseFDs(got)
			return nil, &wire.Error{Kind: "internal", Message: "the agent opened no terminal"}
		}
		_ = syscall.SetNonblock(got[0], true)
		cmd.stdin = os.NewFile(uintptr(got[0]), "terminal")
		cmd.stdout = &pipe.Source{File: cmd.stdin}
	}
	return cmd, nil
}

// spawnRequest hands the other ends of the pipes to the agent.
type spawnRequest struct {
	ipc.Spawn
	theirs *[]int
}

// Sent closes our copies of them while the command starts.
func (r spawnRequest) Sent() {
	pipe.CloseFDs(*r.theirs)
	*r.theirs = nil
}

// pipes makes ours, and adds the other ends to theirs.
func (c *command) pipes(l launch, theirs *[]int) error {
	if l.pty != nil {
		return nil
	}
	end := func(readable bool) (int, error) {
		ours, other, err := pipe.New(readable)
		if err == nil {
			*theirs = append(*theirs, other)
		}
		return ours, err
	}
	if l.stdin {
		fd, err := end(false)
		if err != nil {
			return err
		}
		c.stdin = os.NewFile(uintptr(fd), "pipe")
	}
	fd, err := end(true)
	if err != nil {
		return err
	}
	c.stdout = &pipe.Source{FD: fd}
	if l.merge {
		return nil
	}
	if fd, err = end(true); err == nil {
		c.stderr = &pipe.Source{FD: fd}
	}
	return err
}

func childFDs(l launch, theirs []int, devNull int) []int {
	fds := make([]int, 0, 3+len(l.extra))
	if !l.stdin {
		fds = append(fds, devNull)
	}
	fds = append(fds, theirs...)
	if l.merge {
		fds = append(fds, fds[1])
	}
	return fds
}

func (c *command) closePipes() {
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
	for _, s := range []*pipe.Source{c.stdout, c.stderr} {
		if s != nil {
			s.Close()
		}
	}
}

// expectExit must be called before the process is started: its exit may be
// told before the answer to the start is read here.
func (r *Runner) expectExit(token uint64) <-chan ipc.Exit {
	ch := make(chan ipc.Exit, 1)
	r.exitsMu.Lock()
	r.exits[token] = ch
	r.exitsMu.Unlock()
	return ch
}

func (r *Runner) forgetExit(token uint64) {
	r.exitsMu.Lock()
	delete(r.exits, token)
	r.exitsMu.Unlock()
}

func (r *Runner) exited(e ipc.Exit) {
	r.exitsMu.Lock()
	told := r.exits[e.Token]
	delete(r.exits, e.Token)
	r.exitsMu.Unlock()
	if told != nil {
		told <- e
	}
}
