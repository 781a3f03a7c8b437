package exec

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/slots"
)

const (
	// shownCommand is how much of its command a process shows.
	shownCommand = 4 << 10
	// drainTime bounds how long the news of an exit waits for the last output,
	// which a follower that does not read can hold up.
	drainTime = time.Second
)

// process is a long-lived command: proc.spawn.
type process struct {
	id        string
	slot      *Slot
	token     uint64
	pid       int
	command   ipc.Bytes
	tag       *string
	startedAt time.Time
	terminal  *os.File        // the master side, nil without one
	stdin     *os.File        // nil: none was asked for
	writing   chan struct{}   // held by the one that writes to stdin
	written   atomic.Uint32   // the last byte of the input so far
	input     context.Context // ends with stdin, and says why
	endInput  context.CancelCauseFunc
	logs      [3]*output.Log // by stream
	unbind    func() bool    // the logs are no longer closed with the slot
	ended     chan struct{}

	mu      sync.Mutex
	exit    *exitResult
	endedAt time.Time
}

type processFacts struct {
	Process     string      `json:"process"`
	PID         int         `json:"pid"`
	Command     ipc.Bytes   `json:"command"`
	Tag         *string     `json:"tag"`
	StartedAt   float64     `json:"started_at"`
	AgeS        float64     `json:"age_s"`
	EndedAt     *float64    `json:"ended_at"`
	Exit        *exitResult `json:"exit"`
	StdoutBytes int64       `json:"stdout_bytes"`
	StderrBytes int64       `json:"stderr_bytes"`
	PTY         bool        `json:"pty"`
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func (r *Runner) procSpawn(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p commandParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if err := p.check(r.Memory); err != nil {
		return nil, err
	}
	if p.TimeoutS != nil || p.Stream {
		return nil, channel.BadRequest("proc.spawn takes neither timeout_s nor stream")
	}
	slot, agent, err := r.Slot(c.Ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	l, missing, err := r.procLaunch(c, slot, agent, &p)
	if err != nil {
		return nil, err
	}
	defer pipe.CloseFiles(l.extra)
	cmd := &command{slot: slot, token: c.ID, spawned: missing, started: time.Now()}
	if len(l.argv) > 0 {
		if cmd, err = r.start(slot, agent, l); err != nil {
			return nil, err
		}
	}
	proc := r.adoptProcess(cmd, &p)
	return map[string]any{"process": proc.id, "pid": proc.pid}, nil
}

// procLaunch makes the launch; its argv is empty when the image has no shell.
func (r *Runner) procLaunch(c *channel.Conversation, slot *Slot, agent *slots.Agent,
	p *commandParams) (launch, ipc.Spawned, error) {
	if p.Session != "" {
		x, err := r.session(p.Session, slot)
		if err != nil {
			return launch{}, ipc.Spawned{}, err
		}
		l, _, err := x.prepare(c, p, "")
		return l, ipc.Spawned{}, err
	}
	l := launch{
		token: c.ID, argv: p.Argv, env: environment(agent.Env, p.Env), cwd: directory(agent, p.Cwd),
		user: p.User, merge: p.MergeStderr, stdin: p.Stdin, pty: p.PTY,
	}
	if p.Shell == nil {
		return l, ipc.Spawned{}, nil
	}
	if agent.Shell == "" {
		return launch{}, noShell(), nil
	}
	script, err := shellArgv(agent.Shell, string(*p.Shell))
	l.argv, l.extra = script.argv, script.files
	return l, ipc.Spawned{}, err
}

// adoptProcess makes a process of a started command, or an ended one of a
// command that could not be started.
func (r *Runner) adoptProcess(cmd *command, p *commandParams) *process {
	proc := &process{
		id: "p" + strconv.FormatUint(cmd.token, 10), slot: cmd.slot, token: cmd.token, pid: cmd.spawned.PID, tag: p.Tag,
		startedAt: cmd.started,
		stdin:     cmd.stdin, writing: make(chan struct{}, 1), ended: make(chan struct{}), command: p.text(),
	}
	proc.input, proc.endInput = context.WithCancelCause(cmd.slot.ctx)
	name := strconv.FormatUint(cmd.token, 10)
	proc.logs[output.Stdout] = output.NewLog(p.limit(), cmd.slot.spills, name+"-stdout", r.Memory)
	proc.logs[output.Stderr] = output.NewLog(p.limit(), cmd.slot.spills, name+"-stderr", r.Memory)
	proc.unbind = context.AfterFunc(cmd.slot.ctx, proc.closeLogs)
	if p.PTY != nil && cmd.spawned.Started {
		proc.terminal = cmd.stdout.File
	}
	if !cmd.spawned.Started {
		cmd.closePipes()
		proc.stdin = nil
		stream, end := output.Stderr, "\n"
		if p.MergeStderr || p.PTY != nil {
			stream = output.Stdout
		}
		if p.PTY != nil {
			end = "\r\n" // as a terminal would have made of it
		}
		proc.logs[stream].Write([]byte(cmd.spawned.Reason + end))
		proc.finish(&exitResult{ExitCode: cmd.spawned.ExitCode, Reason: &cmd.spawned.Reason})
	}
	r.mu.Lock()
	r.processes[proc.id] = proc
	r.mu.Unlock()
	if !cmd.spawned.Started {
		proc.keep(r)
	} else {
		cmd.slot.views.Start(cmd.token, proc.pid, p.text)
		go r.watch(proc, cmd)
	}
	return proc
}

func (p *process) closeLogs() {
	p.logs[output.Stdout].Close()
	p.logs[output.Stderr].Close()
}

// Memory and DropOutput are those of a budget.Entry.
func (p *process) Memory() int64 {
	return p.logs[output.Stdout].Memory() + p.logs[output.Stderr].Memory()
}

// DropOutput gives back the memory of its output.
func (p *process) DropOutput() int64 {
	return p.logs[output.Stdout].DropOutput() + p.logs[output.Stderr].DropOutput()
}

// keep remembers an ended process, and forgets those that ended long before.
func (p *process) keep(r *Runner) {
	forgotten := r.history.Add(p.slot, p)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, entry := range forgotten {
		old := entry.(*process)
		delete(r.processes, old.id)
		if old.unbind() {
			old.closeLogs()
		}
	}
	if p.slot.ctx.Err() != nil {
		r.history.Forget(p.slot)
	}
}

// freeMemory makes room in the budget: first the memory of what files have, too,
// then the output of ended processes, as History.Reclaim says. A quarter of the
// budget is what all slots may keep, whatever their neighbours print.
func (r *Runner) freeMemory(need int64) (freed int64) {
	r.mu.Lock()
	all, share := slices.Collect(maps.Values(r.processes)), r.Memory.Limit()/4/int64(max(1, len(r.states)))
	r.mu.Unlock()
	use := map[any]int64{}
	for _, p := range all {
		freed += p.logs[output.Stdout].Shrink() + p.logs[output.Stderr].Shrink()
		use[p.slot] += p.Memory()
	}
	return freed + r.history.Reclaim(need-freed, use, share)
}

// watch reads what the process prints and waits for its end.
func (r *Runner) watch(p *process, cmd *command) {
	defer channel.Contain(r.log, "process")
	pumps := pumpsOf(cmd, p.sink)
	pumps.start()
	var exit ipc.Exit
	select {
	case exit = <-cmd.exit:
	case <-p.slot.ctx.Done():
	}
	if p.slot.ctx.Err() != nil {
		cmd.closePipes()
		return
	}
	result := &exitResult{Started: true, DurationS: time.Since(cmd.started).Seconds()}
	result.take(exit)
	drained := make(chan struct{})
	go func() {
		pumps.finish()
		p.logs[output.Stdout].End()
		p.logs[output.Stderr].End()
		close(drained)
	}()
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
	}
	if p.stdin != nil && p.terminal == nil {
		_ = p.stdin.Close()
	}
	p.finish(result)
	p.keep(r)
	p.slot.views.End(p.token, result.ExitCode)
}

func (p *process) sink(stream int) func([]byte) {
	return func(piece []byte) {
		p.slot.views.Output(p.token, stream, piece)
		p.logs[stream].Write(piece)
	}
}

func (p *process) finish(result *exitResult) {
	if !result.Started {
		p.logs[output.Stdout].End()
		p.logs[output.Stderr].End()
	}
	p.endInput(errEnded)
	p.mu.Lock()
	p.exit, p.endedAt = result, time.Now()
	p.mu.Unlock()
	close(p.ended)
}

// result is nil while the process runs. Its counts are those of the logs now.
func (p *process) result() *exitResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == nil {
		return nil
	}
	r := *p.exit
	r.Stdout.Total, r.Stdout.Tail = p.logs[output.Stdout].Total()
	r.Stderr.Total, r.Stderr.Tail = p.logs[output.Stderr].Total()
	return &r
}

func (p *process) endTime() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endedAt
}

func (p *process) facts() processFacts {
	f := processFacts{
		Process: p.id, PID: p.pid, Command: p.command, Tag: p.tag, StartedAt: seconds(p.startedAt), Exit: p.result(),
		PTY: p.terminal != nil,
	}
	f.StdoutBytes, _ = p.logs[output.Stdout].Total()
	f.StderrBytes, _ = p.logs[output.Stderr].Total()
	// The wall clock says when it began, and nothing else: it may jump.
	f.AgeS = time.Since(p.startedAt).Seconds()
	if f.Exit != nil {
		f.AgeS = p.endTime().Sub(p.startedAt).Seconds()
		at := f.StartedAt + f.AgeS
		f.EndedAt = &at
	}
	return f
}
