package command

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/wire"
)

const (
	// HoldTimeout is how long the agent may hold the reply to a start until the exit, in a slot
	// that runs nothing else. The start of a shell takes half of that on an idle machine.
	//
	// Not the obvious code: see docs/why-not-obvious.md ("Holding the reply for 5 ms").
	HoldTimeout = 5 * time.Millisecond
	// exitTimeout bounds the wait for the exit report after everything was killed.
	exitTimeout = time.Second
)

// Launch describes a process to start.
type Launch struct {
	Token uint64
	Argv  []ipc.Bytes
	Env   []ipc.Bytes
	Base  int // so many of Env are the slot's
	Cwd   string
	User  string
	PTY   *ipc.PTY
	Merge bool       // stderr into stdout
	Stdin bool       // a pipe; else /dev/null
	Extra []*os.File // become 3, 4, …
	Saved *Pump      // reads the state that a session's shell saves; nil: none
	Hold  bool       // the reply may wait for the exit, which is likely to come soon
}

// Command is a started process with the runner's ends of its pipes.
type Command struct {
	Scope   *Scope
	Token   uint64
	Reply   ipc.SpawnResult
	Stdin   *os.File // nil: /dev/null
	Exit    <-chan ipc.Exit
	Started time.Time

	stdout *pipe.Source
	stderr *pipe.Source // nil when merged, or on a terminal
}

// NewUnstarted returns a command that could not be started, for the reason in reply.
func NewUnstarted(scope *Scope, token uint64, spawned ipc.SpawnResult) *Command {
	return &Command{Scope: scope, Token: token, Reply: spawned, Started: time.Now()}
}

// Starter starts commands and delivers exits to them.
type Starter struct {
	devNull *os.File

	mu    sync.Mutex
	exits map[uint64]chan<- ipc.Exit // channels that wait for the exit of a command, by token
}

// NewStarter makes a Starter. DeliverExit must be called with each exit.
func NewStarter() (*Starter, error) {
	devNull, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("standard input of commands: %w", err)
	}
	return &Starter{devNull: devNull, exits: map[uint64]chan<- ipc.Exit{}}, nil
}

// Start makes the pipes and has the agent fork. It returns an error only for failures that are not
// the program's: those are results.
func (s *Starter) Start(scope *Scope, l Launch) (*Command, error) {
	cmd, err := s.startIn(scope, l)
	if workdir := scope.Agent().Workdir(); err != nil && l.Cwd == workdir && IsDirectoryError(err, workdir) &&
		scope.Agent().StartIn(scope.ctx, workdir) == nil {
		return s.startIn(scope, l) // a tenant had removed the directory
	}
	return cmd, err
}

func (s *Starter) startIn(scope *Scope, l Launch) (*Command, error) {
	cmd := &Command{Scope: scope, Token: l.Token}
	var theirs []int
	defer func() { pipe.CloseFDs(theirs) }()
	if err := cmd.pipes(l, &theirs); err != nil {
		cmd.ClosePipes()
		return nil, err
	}
	var fds []int
	if l.PTY == nil {
		fds = childFDs(l, theirs, int(s.devNull.Fd()))
	}
	for _, f := range l.Extra {
		fds = append(fds, int(f.Fd()))
	}
	cmd.Exit = s.expectExit(l.Token)
	request := spawnRequest{theirs: &theirs}
	request.Spawn = ipc.Spawn{Token: l.Token, Argv: l.Argv, Env: l.Env, Base: l.Base, Cwd: ipc.Bytes(l.Cwd),
		User: l.User, PTY: l.PTY}
	if l.Hold {
		request.HoldMS = int(HoldTimeout / time.Millisecond)
	}
	// A start is never cancelled halfway: the runner must know which processes may run.
	got, err := scope.Agent().Call(scope.ctx, ipc.OpSpawn, request, &cmd.Reply, fds...)
	cmd.Started = time.Now().Add(-time.Duration(cmd.Reply.RanS * float64(time.Second)))
	if err != nil && ipc.AsError(err).Kind == "too_large" {
		// Far above the limit of the system, so the agent did not try.
		cmd.Reply, err = ipc.SpawnResult{ExitCode: 126, Reason: "argument list too long"}, nil
	}
	if err != nil || !cmd.Reply.Started {
		s.forgetExit(l.Token)
		pipe.CloseFDs(got)
	}
	if cmd.Reply.Exit != nil {
		s.DeliverExit(*cmd.Reply.Exit)
	}
	if err != nil {
		cmd.ClosePipes()
		return nil, scope.Explain(err)
	}
	if l.PTY != nil && cmd.Reply.Started {
		if len(got) != 1 {
			pipe.CloseFDs(got)
			return nil, &wire.Error{Kind: "internal", Message: "the agent opened no terminal"}
		}
		_ = syscall.SetNonblock(got[0], true)
		cmd.Stdin = os.NewFile(uintptr(got[0]), "terminal")
		cmd.stdout = &pipe.Source{File: cmd.Stdin}
	}
	return cmd, nil
}

// spawnRequest passes the other ends of the pipes to the agent.
type spawnRequest struct {
	ipc.Spawn
	theirs *[]int
}

// AfterSend closes the runner's copies of them while the command starts.
func (r spawnRequest) AfterSend() {
	pipe.CloseFDs(*r.theirs)
	*r.theirs = nil
}

// pipes makes the pipes of a command, and adds the other ends to theirs.
func (c *Command) pipes(l Launch, theirs *[]int) error {
	if l.PTY != nil {
		return nil
	}
	end := func(readable bool) (int, error) {
		ours, other, err := pipe.New(readable)
		if err == nil {
			*theirs = append(*theirs, other)
		}
		return ours, err
	}
	if l.Stdin {
		fd, err := end(false)
		if err != nil {
			return err
		}
		c.Stdin = os.NewFile(uintptr(fd), "pipe")
	}
	fd, err := end(true)
	if err != nil {
		return err
	}
	c.stdout = &pipe.Source{FD: fd}
	if l.Merge {
		return nil
	}
	if fd, err = end(true); err == nil {
		c.stderr = &pipe.Source{FD: fd}
	}
	return err
}

func childFDs(l Launch, theirs []int, devNull int) []int {
	fds := make([]int, 0, 3+len(l.Extra))
	if !l.Stdin {
		fds = append(fds, devNull)
	}
	fds = append(fds, theirs...)
	if l.Merge {
		fds = append(fds, fds[1])
	}
	return fds
}

// ClosePipes closes the runner's ends of the pipes.
func (c *Command) ClosePipes() {
	if c.Stdin != nil {
		_ = c.Stdin.Close()
	}
	for _, s := range []*pipe.Source{c.stdout, c.stderr} {
		if s != nil {
			s.Close()
		}
	}
}

// Terminal returns the master side of the command's terminal, or nil.
func (c *Command) Terminal() *os.File {
	if c.stdout != nil && c.stdout.File == c.Stdin {
		return c.Stdin
	}
	return nil
}

// CheckExit returns the exit of a command, or an error if its slot has ended: the end of the slot
// may have caused the exit.
func (c *Command) CheckExit(exit ipc.Exit) (ipc.Exit, error) {
	if cause := c.Scope.Err(); cause != nil {
		return ipc.Exit{}, cause
	}
	return exit, nil
}

// Kill ends a command with all its descendants, and waits for its exit.
func (s *Starter) Kill(c *Command) (ipc.Receipt, ipc.Exit, error) {
	receipt, err := c.Scope.Kill(c.Token, 0)
	if err != nil {
		return receipt, ipc.Exit{}, err
	}
	timer := time.NewTimer(exitTimeout)
	defer timer.Stop()
	var exit ipc.Exit
	select {
	case exit = <-c.Exit:
	case <-c.Scope.ctx.Done():
	case <-timer.C:
		s.forgetExit(c.Token)
		exit = ipc.Exit{Token: c.Token, ExitCode: 128 + 9, Signal: 9}
	}
	exit, err = c.CheckExit(exit)
	return receipt, exit, err
}

// expectExit must be called before the process is started: its exit may arrive before the reply to
// the start is read.
func (s *Starter) expectExit(token uint64) <-chan ipc.Exit {
	ch := make(chan ipc.Exit, 1)
	s.mu.Lock()
	s.exits[token] = ch
	s.mu.Unlock()
	return ch
}

func (s *Starter) forgetExit(token uint64) {
	s.mu.Lock()
	delete(s.exits, token)
	s.mu.Unlock()
}

// DeliverExit delivers an exit to its command.
func (s *Starter) DeliverExit(e ipc.Exit) {
	s.mu.Lock()
	waiting := s.exits[e.Token]
	delete(s.exits, e.Token)
	s.mu.Unlock()
	if waiting != nil {
		waiting <- e
	}
}
