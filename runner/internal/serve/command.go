package serve

import (
	"context"
	"os"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

const (
	// killGrace is between TERM and KILL.
	killGrace = 0.5
	// killTime bounds the wait for a receipt; the agent answers within 4 s.
	killTime = 5 * time.Second
	// afterKill is how long the exit may take to be told once nothing is left.
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
	saved *pump // takes what else the command tells of itself; nil: nothing
	hold  bool  // most likely it is over before anything of it is wanted
}

// command is a started process with our ends of its pipes.
type command struct {
	slot    *slotState
	token   uint64
	spawned ipc.Spawned
	stdin   *os.File // nil: /dev/null
	stdout  *source
	stderr  *source // nil when merged, or on a terminal
	exit    <-chan ipc.Exit
	started time.Time
	held    bool // holdTime is over
}

// start makes the pipes and has the agent fork. It fails with an error only
// when nothing can be said about the program itself.
func (s *Server) start(slot *slotState, agent *slots.Agent, l launch) (*command, error) {
	cmd := &command{slot: slot, token: l.token}
	var theirs []int
	defer func() { closeFDs(theirs) }()
	if err := cmd.pipes(l, &theirs); err != nil {
		cmd.closePipes()
		return nil, err
	}
	var fds []int
	if l.pty == nil {
		fds = childFDs(l, theirs, int(s.devNull.Fd()))
	}
	for _, f := range l.extra {
		fds = append(fds, int(f.Fd()))
	}
	cmd.exit = s.expectExit(l.token)
	request := spawnRequest{theirs: &theirs}
	request.Spawn = ipc.Spawn{Token: l.token, Argv: l.argv, Env: l.env, Cwd: ipc.Bytes(l.cwd), User: l.user, PTY: l.pty}
	if l.hold {
		request.HoldMS = int(holdTime / time.Millisecond)
	}
	// A start is never broken off in between: what may run must be known.
	got, err := agent.Call(slot.ctx, ipc.OpSpawn, request, &cmd.spawned, fds...)
	cmd.started = time.Now().Add(-time.Duration(cmd.spawned.RanS * float64(time.Second)))
	if err != nil && ipc.AsError(err).Kind == "too_large" {
		// Far more than the system takes, were it to be asked.
		cmd.spawned, err = ipc.Spawned{ExitCode: 126, Reason: "argument list too long"}, nil
	}
	if err != nil || !cmd.spawned.Started {
		s.forgetExit(l.token)
		closeFDs(got)
	}
	if cmd.held = l.hold; cmd.spawned.Exit != nil {
		s.exited("", *cmd.spawned.Exit)
	}
	if err != nil {
		cmd.closePipes()
		return nil, s.startError(slot, err)
	}
	if l.pty != nil && cmd.spawned.Started {
		if len(got) != 1 {
			closeFDs(got)
			return nil, &wire.Error{Kind: "internal", Message: "the agent opened no terminal"}
		}
		_ = syscall.SetNonblock(got[0], true)
		cmd.stdin = os.NewFile(uintptr(got[0]), "terminal")
		cmd.stdout = &source{file: cmd.stdin}
	}
	return cmd, nil
}

// spawnRequest gives the other ends of the pipes away.
type spawnRequest struct {
	ipc.Spawn
	theirs *[]int
}

// Sent closes ours while the command starts.
func (r spawnRequest) Sent() {
	closeFDs(*r.theirs)
	*r.theirs = nil
}

// pipes makes ours, and adds the other ends to theirs.
func (c *command) pipes(l launch, theirs *[]int) error {
	if l.pty != nil {
		return nil
	}
	pipe := func(readable bool) (int, error) {
		ours, other, err := pipeFDs(readable)
		if err == nil {
			*theirs = append(*theirs, other)
		}
		return ours, err
	}
	if l.stdin {
		fd, err := pipe(false)
		if err != nil {
			return err
		}
		c.stdin = os.NewFile(uintptr(fd), "pipe")
	}
	fd, err := pipe(true)
	if err != nil {
		return err
	}
	c.stdout = &source{fd: fd}
	if l.merge {
		return nil
	}
	if fd, err = pipe(true); err == nil {
		c.stderr = &source{fd: fd}
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
	for _, s := range []*source{c.stdout, c.stderr} {
		if s != nil {
			s.close()
		}
	}
}

// pipeFor is pipeFDs with our end as a file.
func pipeFor(readable bool) (ours *os.File, theirs int, err error) {
	fd, theirs, err := pipeFDs(readable)
	if err != nil {
		return nil, -1, err
	}
	return os.NewFile(uintptr(fd), "pipe"), theirs, nil
}

// pipeFDs makes a pipe: our end does not block, theirs does. readable says
// which end is ours.
func pipeFDs(readable bool) (ours, theirs int, err error) {
	r, w, err := rawPipe()
	if err != nil {
		return -1, -1, &wire.Error{Kind: "exhausted", Message: "no pipe can be had: " + err.Error()}
	}
	mine, other := w, r
	if readable {
		mine, other = r, w
	}
	if err := notBlocking(mine); err != nil {
		closeFDs([]int{r, w})
		return -1, -1, err
	}
	return mine, other, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

// expectExit must be called before the process is started: its exit may be
// told before the answer to the start is read here.
func (s *Server) expectExit(token uint64) <-chan ipc.Exit {
	ch := make(chan ipc.Exit, 1)
	s.exitsMu.Lock()
	s.exits[token] = ch
	s.exitsMu.Unlock()
	return ch
}

func (s *Server) forgetExit(token uint64) {
	s.exitsMu.Lock()
	delete(s.exits, token)
	s.exitsMu.Unlock()
}

func (s *Server) exited(_ string, e ipc.Exit) {
	s.exitsMu.Lock()
	told := s.exits[e.Token]
	delete(s.exits, e.Token)
	s.exitsMu.Unlock()
	if told != nil {
		told <- e
	}
}

// kill ends the tree of a command. A receipt with Left 1 says that the agent
// did not answer; the error is why the slot ended.
func (s *Server) kill(slot *slotState, token uint64) (ipc.Receipt, error) {
	ctx, cancel := context.WithTimeout(slot.ctx, killTime)
	defer cancel()
	begun := time.Now()
	var receipt ipc.Receipt
	if _, err := slot.call(ctx, ipc.OpKill, ipc.Kill{Token: token, GraceS: killGrace}, &receipt); err != nil {
		if slot.ctx.Err() != nil {
			return receipt, slot.cause()
		}
		if e := ipc.AsError(err); e.Kind == "slot_closed" {
			return receipt, e // a reset ends everything, and proves it
		}
		s.log.Printf("kill of %d: %v", token, err)
		receipt = ipc.Receipt{Found: 1, Left: 1, DurationS: time.Since(begun).Seconds()}
	}
	return tidy(receipt), nil
}
