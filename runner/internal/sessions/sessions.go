package sessions

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/session"
)

// maxStateSize bounds the state of a session; a larger state is not kept.
const maxStateSize = 16 << 20

// minOpenFiles is how many descriptors a shell needs to move its own out of the way.
const minOpenFiles = 16

// Session runs one command at a time, in the driver's order.
type Session struct {
	id     string
	scope  *command.Scope
	memory *budget.Budget

	free  chan struct{} // holds one while no command runs
	mu    sync.Mutex
	state *session.State

	fifo    *fifo           // nil before the first command
	busy    bool            // a command uses the FIFO
	kept    *budget.Account // the memory of its state
	entered bool            // a command has run in its directory; owned by the running command
	ended   bool
}

// Registry holds the sessions of all slots.
type Registry struct {
	memory *budget.Budget

	mu  sync.Mutex
	all map[string]*Session
}

// NewRegistry makes a Registry that takes the memory of states from a budget.
func NewRegistry(memory *budget.Budget) *Registry {
	return &Registry{memory: memory, all: map[string]*Session{}}
}

// Open carries out session.open.
func (r *Registry) Open(c *channel.Conversation, scope *command.Scope, params json.RawMessage) (any, error) {
	var p struct {
		Cwd *ipc.Bytes           `json:"cwd"`
		Env map[string]ipc.Bytes `json:"env"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if err := command.CheckEnv(p.Env); err != nil {
		return nil, err
	}
	agent := scope.Agent()
	shell, ok := session.BestShell(agent.Shells, agent.Shell)
	if !ok {
		return nil, channel.BadRequest("this image has no shell, and a session needs one")
	}
	if agent.OpenFiles > 0 && agent.OpenFiles < minOpenFiles {
		return nil, channel.BadRequest("a session needs at least %d open files, and a process of this slot may have %d",
			minOpenFiles, agent.OpenFiles)
	}
	entries := command.Environment(agent.Env, p.Env)
	env := make([]string, len(entries))
	for i, entry := range entries {
		env[i] = string(entry)
	}
	x := &Session{id: "s" + strconv.FormatUint(c.ID, 10), scope: scope, memory: r.memory, free: make(chan struct{}, 1),
		state: session.Open(shell, command.Directory(agent, p.Cwd), env)}
	x.free <- struct{}{}
	r.mu.Lock()
	defer r.mu.Unlock()
	if cause := scope.Err(); cause != nil {
		return nil, cause
	}
	r.all[x.id] = x
	return map[string]any{"session": x.id, "shell": shell.Name, "keeps": shell.Keeps()}, nil
}

// Close carries out session.close.
func (r *Registry) Close(params json.RawMessage) error {
	var p struct {
		Session string `json:"session"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return err
	}
	x, err := r.Find(p.Session, nil)
	if err != nil {
		return err
	}
	x.end()
	r.mu.Lock()
	delete(r.all, p.Session)
	r.mu.Unlock()
	return nil
}

// Find returns a session of this scope, or of any scope if it is nil.
func (r *Registry) Find(id string, scope *command.Scope) (*Session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[id]
	if x == nil || scope != nil && x.scope != scope {
		return nil, &ipc.Error{Kind: "no_session", Message: "no session " + strconv.Quote(id) + " in this slot"}
	}
	return x, nil
}

// EndSlot ends the sessions of a scope that has ended.
func (r *Registry) EndSlot(scope *command.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.all, func(_ string, x *Session) bool {
		if x.scope == scope {
			x.end()
		}
		return x.scope == scope
	})
}

// Launch returns the launch for a command beside those of the session: its state is not kept.
func (x *Session) Launch(token uint64, p *command.Params) (command.Launch, error) {
	l, _, err := x.prepare(token, p, "")
	return l, err
}

// prepare returns the launch for a command of the session. save is the path of the FIFO for its
// state, "" if the state is not kept.
func (x *Session) prepare(token uint64, p *command.Params, save string) (l command.Launch, call session.Call,
	err error) {
	x.mu.Lock()
	call = session.Call{Env: p.SessionEnv(x.state.Exports), Save: save, FDPath: pipe.FDPath}
	if p.Cwd != nil {
		call.Cwd = string(*p.Cwd)
		if !strings.HasPrefix(call.Cwd, "/") {
			call.Cwd = x.state.Cwd() + "/" + call.Cwd
		}
	}
	program := x.state.Command(string(*p.Shell), call)
	x.mu.Unlock()
	l = command.Launch{Token: token, Cwd: program.Cwd, User: p.User, Merge: p.MergeStderr, Stdin: p.Stdin, PTY: p.PTY}
	for _, argument := range program.Argv {
		l.Argv = append(l.Argv, ipc.Bytes(argument))
	}
	for _, entry := range program.Env {
		l.Env = append(l.Env, ipc.Bytes(entry))
	}
	for _, content := range program.Files {
		file, err := pipe.MemoryFile("session", string(content))
		if err != nil {
			pipe.CloseFiles(l.Extra)
			return l, call, err
		}
		l.Extra = append(l.Extra, file)
	}
	return l, call, nil
}

// Run carries out exec.run in a session: it calls run with the launch once earlier commands have
// ended.
func (x *Session) Run(c *channel.Conversation, p *command.Params,
	run func(command.Launch) (*command.Result, ipc.Exit, error)) (any, error) {
	agent := x.scope.Agent()
	ctx, done := x.scope.Join(c.Ctx)
	defer done()
	select {
	case <-x.free:
		defer func() { x.free <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	saving, works := newStateReader(x), false
	defer func() { saving.memory.Close() }()
	defer func() { x.releaseFIFO(works) }()
	l, call, err := x.prepare(c.ID, p, saving.path)
	if err != nil {
		return nil, err
	}
	defer pipe.CloseFiles(l.Extra)
	l.Saved = saving.pump
	result, exit, err := run(l)
	if p.Cwd == nil && x.entered && l.Cwd != agent.Workdir() && command.IsDirectoryError(err, l.Cwd) {
		// The command must not run elsewhere, and later commands must not fail for ever.
		x.mu.Lock()
		x.state.Move(agent.Workdir())
		x.mu.Unlock()
		err = newMovedError(err, agent.Workdir())
	}
	if err != nil {
		return nil, err
	}
	x.entered = true
	where := ipc.Bytes(l.Cwd)
	if result.Started {
		x.mu.Lock()
		kept := x.state.Done(call, saving.kept, string(exit.Cwd))
		where = ipc.Bytes(x.state.Cwd())
		if kept && !x.ended {
			x.kept, saving.memory = saving.memory, x.kept
		}
		x.mu.Unlock()
		works = kept // otherwise the tenant may have removed it
		if !kept {
			result.StateLost = saving.explainLoss(exit)
		}
	}
	result.Cwd = &where
	return result, nil
}

// newMovedError returns err with the directory in which the session continues.
func newMovedError(err error, to string) error {
	e := *channel.AsWire(err)
	e.Detail = map[string]ipc.Bytes{"cwd": ipc.Bytes(to)}
	e.Message = "nothing ran, because the session's directory cannot be entered; the next command starts in " + to
	return &e
}

// fifo is the FIFO to which the shells of a session write their state.
type fifo struct {
	path   string // in the slot
	source *pipe.Source
	remove func()
}

func (ch *fifo) close() {
	ch.remove()
	ch.source.Close()
}

// acquireFIFO returns the session's FIFO, empty; releaseFIFO must follow. The FIFO exists from the
// first command on, because making it takes longer than using it.
func (x *Session) acquireFIFO() (*fifo, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil, command.ErrSlotClosed
	}
	if x.fifo == nil {
		fd, path, remove, err := x.scope.Agent().FIFO(x.id)
		if err != nil {
			return nil, err
		}
		x.fifo = &fifo{path: path, source: &pipe.Source{FD: fd}, remove: remove}
	}
	if file := x.fifo.source.File; file != nil {
		_ = file.SetReadDeadline(time.Time{})
	}
	command.DiscardPending(x.fifo.source)
	x.busy = true
	return x.fifo, nil
}

// releaseFIFO ends the use of the FIFO. A FIFO that may be broken is replaced.
func (x *Session) releaseFIFO(works bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.busy = false
	if !works || x.ended {
		x.closeFIFO()
	}
}

// end closes the FIFO for good, once no command uses it.
func (x *Session) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	x.kept.Close()
	if !x.busy {
		x.closeFIFO()
	}
}

func (x *Session) closeFIFO() {
	if x.fifo != nil {
		x.fifo.close()
		x.fifo = nil
	}
}

// stateReader reads the state that a shell writes to the FIFO. The tenant can write to it too.
type stateReader struct {
	path string // in the slot; "" if nothing can be saved
	err  error  // the reason for an empty path
	pump *command.Pump
	kept []byte // nil if it is too large
	size int

	memory      *budget.Account
	outOfMemory bool // the budget had no memory for it
}

func newStateReader(x *Session) *stateReader {
	ch, err := x.acquireFIFO()
	if err != nil {
		return &stateReader{err: err}
	}
	v := &stateReader{path: ch.path, memory: x.memory.Open()}
	v.pump = command.NewSavedPump(x.scope, ch.source, v.add)
	return v
}

func (v *stateReader) add(p []byte) {
	v.size += len(p)
	v.outOfMemory = v.outOfMemory || !v.memory.Reserve(int64(len(p)))
	if v.size <= maxStateSize && !v.outOfMemory {
		v.kept = append(v.kept, p...)
	} else {
		v.kept = nil
	}
}

// explainLoss returns why the session does not continue with the state of its command.
func (v *stateReader) explainLoss(exit ipc.Exit) string {
	const before = "; the session continues from the state before this command"
	switch {
	case v.err != nil:
		return "the state of the shell cannot be saved: " + v.err.Error() + before
	case v.size > maxStateSize:
		return "the state of the shell is larger than " + strconv.Itoa(maxStateSize>>20) + " MiB" + before
	case v.outOfMemory:
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
