package exec

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/session"
	"hermes-exec/runner/internal/slots"
)

// maxSaved bounds the state of a session; a larger one is not kept.
const maxSaved = 16 << 20

// fewestFiles is what a shell needs to put its own descriptors aside.
const fewestFiles = 16

// shellSession is a session, which runs one command at a time. Their order is
// the driver's.
type shellSession struct {
	id    string
	slot  *Slot
	agent *slots.Agent
	shell session.Shell

	free  chan struct{} // holds one while no command runs
	mu    sync.Mutex
	state *session.State

	fifo    *fifo           // nil before the first command
	busy    bool            // a command writes to it
	memory  *budget.Account // of its state
	entered bool            // a command has run in its directory; of the command that runs
	ended   bool
}

func (r *Runner) sessionOpen(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Slot string               `json:"slot"`
		Cwd  *ipc.Bytes           `json:"cwd"`
		Env  map[string]ipc.Bytes `json:"env"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if err := checkEnv(p.Env); err != nil {
		return nil, err
	}
	slot, agent, err := r.Slot(c.Ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	x := &shellSession{id: "s" + strconv.FormatUint(c.ID, 10), slot: slot, agent: agent, free: make(chan struct{}, 1)}
	x.free <- struct{}{}
	var known bool
	if x.shell, known = session.Best(agent.Shells, agent.Shell); !known {
		return nil, channel.BadRequest("this image has no shell, and a session needs one")
	}
	if agent.OpenFiles > 0 && agent.OpenFiles < fewestFiles {
		return nil, channel.BadRequest("a session needs at least %d open files, and a process of this slot may have %d",
			fewestFiles, agent.OpenFiles)
	}
	entries := environment(agent.Env, p.Env)
	env := make([]string, len(entries))
	for i, entry := range entries {
		env[i] = string(entry)
	}
	x.state = session.Open(x.shell, directory(agent, p.Cwd), env)
	r.mu.Lock()
	r.sessions[x.id] = x
	r.mu.Unlock()
	if slot.ctx.Err() != nil {
		return nil, slot.cause()
	}
	return map[string]any{"session": x.id, "shell": x.shell.Name, "keeps": x.shell.Keeps()}, nil
}

func (r *Runner) sessionClose(_ *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Session string `json:"session"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	x, err := r.session(p.Session, nil)
	if err != nil {
		return nil, err
	}
	x.end()
	r.mu.Lock()
	delete(r.sessions, p.Session)
	r.mu.Unlock()
	return nil, nil
}

func (r *Runner) session(id string, slot *Slot) (*shellSession, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.sessions[id]
	if x == nil || slot != nil && x.slot != slot {
		return nil, &ipc.Error{Kind: "no_session", Message: "no session " + strconv.Quote(id) + " in this slot"}
	}
	return x, nil
}

// prepare makes the launch for a command of the session. save is the path of
// the FIFO that its state goes to, "" where it is not kept.
func (x *shellSession) prepare(c *channel.Conversation, p *commandParams, save string) (l launch, call session.Call,
	err error) {
	call = session.Call{Env: map[string]string{}, Save: save, FDPath: pipe.FDPath}
	for name, value := range p.Env {
		call.Env[name] = string(value)
	}
	x.mu.Lock()
	if p.Cwd != nil {
		call.Cwd = string(*p.Cwd)
		if !strings.HasPrefix(call.Cwd, "/") {
			call.Cwd = x.state.Cwd() + "/" + call.Cwd
		}
	}
	program := x.state.Command(string(*p.Shell), call)
	x.mu.Unlock()
	l = launch{token: c.ID, cwd: program.Cwd, user: p.User, merge: p.MergeStderr, stdin: p.Stdin, pty: p.PTY}
	for _, argument := range program.Argv {
		l.argv = append(l.argv, ipc.Bytes(argument))
	}
	for _, entry := range program.Env {
		l.env = append(l.env, ipc.Bytes(entry))
	}
	for _, content := range program.Files {
		file, err := pipe.MemoryFile("session", string(content))
		if err != nil {
			pipe.CloseFiles(l.extra)
			return l, call, err
		}
		l.extra = append(l.extra, file)
	}
	return l, call, nil
}

// runInSession is exec.run with a session.
func (r *Runner) runInSession(c *channel.Conversation, slot *Slot, agent *slots.Agent, p *commandParams) (any, error) {
	x, err := r.session(p.Session, slot)
	if err != nil {
		return nil, err
	}
	ctx, done := slot.Join(c.Ctx)
	defer done()
	select {
	case <-x.free:
		defer func() { x.free <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	saving, works := newSaving(x, r.Memory), false
	defer func() { saving.memory.Close() }()
	defer func() { x.done(works) }()
	l, call, err := x.prepare(c, p, saving.path)
	if err != nil {
		return nil, err
	}
	defer pipe.CloseFiles(l.extra)
	l.saved = saving.pump
	result, exit, err := r.run(c, slot, agent, p, l)
	if p.Cwd == nil && x.entered && l.cwd != agent.Workdir() && cannotEnter(err, l.cwd) {
		// The command must not run elsewhere, and not every later one may fail.
		x.mu.Lock()
		x.state.Move(agent.Workdir())
		x.mu.Unlock()
		err = moved(err, agent.Workdir())
	}
	if err != nil {
		return nil, err
	}
	x.entered = true
	where := ipc.Bytes(l.cwd)
	if result.Started {
		x.mu.Lock()
		kept := x.state.Done(call, saving.kept, string(exit.Cwd))
		where = ipc.Bytes(x.state.Cwd())
		if kept && !x.ended {
			x.memory, saving.memory = saving.memory, x.memory
		}
		x.mu.Unlock()
		works = kept // else the tenant may have removed it
		if !kept {
			result.StateLost = saving.whyLost(exit)
		}
	}
	result.Cwd = &where
	return result, nil
}

// cannotEnter says whether err is that the session's directory cwd is gone or
// cannot be entered any more.
func cannotEnter(err error, cwd string) bool {
	var e *ipc.Error
	if !errors.As(err, &e) || string(e.Path) != cwd {
		return false
	}
	return slices.Contains([]string{"ENOENT", "ENOTDIR", "EACCES", "ELOOP", "ENAMETOOLONG"}, e.Errno)
}

// moved is err with the directory in which the session goes on.
func moved(err error, to string) error {
	e := *channel.AsWire(err)
	e.Detail = map[string]ipc.Bytes{"cwd": ipc.Bytes(to)}
	e.Message = "nothing ran, for the session's directory cannot be entered any more; the next command starts in " + to
	return &e
}

// fifo is the one that the shells of a session write their state to.
type fifo struct {
	path   string // in the slot
	source *pipe.Source
	remove func()
}

func (ch *fifo) close() {
	ch.remove()
	ch.source.Close()
}

// open gives the session's FIFO, empty; done must be called. It is there
// from the first command on, for a FIFO takes longer to make than to use.
func (x *shellSession) open() (*fifo, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil, ErrSlotClosed
	}
	if x.fifo == nil {
		fd, path, remove, err := x.agent.FIFO(x.id)
		if err != nil {
			return nil, err
		}
		x.fifo = &fifo{path: path, source: &pipe.Source{FD: fd}, remove: remove}
	}
	if file := x.fifo.source.File; file != nil {
		_ = file.SetReadDeadline(time.Time{})
	}
	left := pump{source: x.fifo.source, sink: func([]byte) {}}
	left.drain()
	x.busy = true
	return x.fifo, nil
}

// done gives the FIFO back. One that may not work any more is replaced.
func (x *shellSession) done(works bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.busy = false
	if !works || x.ended {
		x.closeFIFO()
	}
}

// end closes the FIFO for good, once nobody uses it.
func (x *shellSession) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	x.memory.Close()
	if !x.busy {
		x.closeFIFO()
	}
}

func (x *shellSession) closeFIFO() {
	if x.fifo != nil {
		x.fifo.close()
		x.fifo = nil
	}
}

// saving takes the state that a shell writes to the FIFO, to which the tenant
// can write too.
type saving struct {
	path string // in the slot; "" where nothing can be saved
	err  error  // why
	pump *pump
	kept []byte // nil when it is too much
	size int

	memory *budget.Account
	short  bool // of memory
}

func newSaving(x *shellSession, memory *budget.Budget) *saving {
	ch, err := x.open()
	if err != nil {
		return &saving{err: err}
	}
	v := &saving{path: ch.path, memory: memory.Open()}
	v.pump = &pump{slot: x.slot, source: ch.source, sink: v.take, late: true, ours: true}
	return v
}

func (v *saving) take(p []byte) {
	v.size += len(p)
	v.short = v.short || !v.memory.Take(int64(len(p)))
	if v.size <= maxSaved && !v.short {
		v.kept = append(v.kept, p...)
	} else {
		v.kept = nil
	}
}

// whyLost says why a session does not go on from where its command ended.
func (v *saving) whyLost(exit ipc.Exit) string {
	const before = "; the session goes on from the state before this command"
	switch {
	case v.err != nil:
		return "the state of the shell cannot be saved: " + v.err.Error() + before
	case v.size > maxSaved:
		return "the state of the shell is larger than " + strconv.Itoa(maxSaved>>20) + " MiB" + before
	case v.short:
		return "the runner has no memory left for the state of the shell" + before
	case exit.Signal != 0:
		return "the shell was killed by signal " + strconv.Itoa(exit.Signal) + before
	case v.size == 0:
		return "the shell was replaced (exec), or could not save its state (for which it needs a free descriptor)" +
			before
	default:
		return "the state of the shell could only be kept in part"
	}
}
