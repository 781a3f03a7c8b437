package process

import (
	"context"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
)

const (
	// drainTimeout bounds how long the report of an exit waits for the last output, which a
	// follower that does not read can hold up.
	drainTimeout = time.Second
)

// process is a long-lived command: proc.spawn.
type process struct {
	id        string
	scope     *command.Scope
	token     uint64
	pid       int
	command   ipc.Bytes
	tag       *string
	startedAt time.Time
	terminal  *os.File        // the master side, nil without a terminal
	stdin     *os.File        // nil: none was requested
	writeLock chan struct{}   // held by the request that writes to stdin
	lineBytes int             // of the unfinished line that was written to the terminal; guarded by writeLock
	input     context.Context // ends with stdin, with the reason as its cause
	endInput  context.CancelCauseFunc
	logs      [3]*output.Log // by stream
	keepLogs  func() bool    // keeps the logs open when the slot ends
	ended     chan struct{}

	mu      sync.Mutex
	exit    *command.Result
	endedAt time.Time
}

type processFacts struct {
	Process     string          `json:"process"`
	PID         int             `json:"pid"`
	Command     ipc.Bytes       `json:"command"`
	Tag         *string         `json:"tag"`
	StartedAt   float64         `json:"started_at"`
	AgeS        float64         `json:"age_s"`
	EndedAt     *float64        `json:"ended_at"`
	Exit        *command.Result `json:"exit"`
	StdoutBytes int64           `json:"stdout_bytes"`
	StderrBytes int64           `json:"stderr_bytes"`
	PTY         bool            `json:"pty"`
}

// Registry holds the processes of all slots.
type Registry struct {
	log     *log.Logger
	memory  *budget.Budget
	history budget.History

	mu  sync.Mutex
	all map[string]*process
}

// NewRegistry makes a Registry that takes the memory of its output from a budget.
func NewRegistry(memory *budget.Budget, log *log.Logger) *Registry {
	return &Registry{log: log, memory: memory, all: map[string]*process{}}
}

// EndSlot forgets the processes of a scope that has ended.
func (r *Registry) EndSlot(scope *command.Scope) {
	r.mu.Lock()
	maps.DeleteFunc(r.all, func(_ string, p *process) bool { return p.scope == scope })
	r.mu.Unlock()
	r.history.Forget(scope)
}

// CloseFiles gives up the files with the output of a scope's processes: of each stream the last bytes
// stay in memory.
func (r *Registry) CloseFiles(scope *command.Scope) {
	r.mu.Lock()
	var logs []*output.Log
	for _, p := range r.all {
		if p.scope == scope {
			logs = append(logs, p.logs[output.Stdout], p.logs[output.Stderr])
		}
	}
	r.mu.Unlock()
	for _, log := range logs {
		log.CloseFile()
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// Adopt makes a process of a started command, or an ended process of a command that could not be
// started. It returns the result of proc.spawn.
func (r *Registry) Adopt(cmd *command.Command, p *command.Params) any {
	proc := &process{
		id: "p" + strconv.FormatUint(cmd.Token, 10), scope: cmd.Scope, token: cmd.Token, pid: cmd.Reply.PID,
		command: p.Text(), tag: p.Tag, startedAt: cmd.Started, terminal: cmd.Terminal(), stdin: cmd.Stdin,
		writeLock: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	proc.input, proc.endInput = context.WithCancelCause(cmd.Scope.Context())
	name := strconv.FormatUint(cmd.Token, 10)
	proc.logs[output.Stdout] = output.NewLog(p.Limit(), cmd.Scope.Spills, name+"-stdout", r.memory)
	proc.logs[output.Stderr] = output.NewLog(p.Limit(), cmd.Scope.Spills, name+"-stderr", r.memory)
	proc.keepLogs = context.AfterFunc(cmd.Scope.Context(), proc.closeLogs)
	if !cmd.Reply.Started {
		cmd.ClosePipes()
		proc.stdin = nil
		stream, end := output.Stderr, "\n"
		if p.MergeStderr || p.PTY != nil {
			stream = output.Stdout
		}
		if p.PTY != nil {
			end = "\r\n" // as a terminal would translate it
		}
		proc.logs[stream].Write([]byte(cmd.Reply.Reason + end))
		proc.finish(&command.Result{ExitCode: cmd.Reply.ExitCode, Reason: &cmd.Reply.Reason})
	}
	r.mu.Lock()
	if cmd.Scope.Err() == nil {
		r.all[proc.id] = proc
	}
	r.mu.Unlock()
	if !cmd.Reply.Started {
		proc.keep(r)
	} else {
		cmd.Scope.Views.Start(cmd.Token, proc.pid, p.Text)
		go r.watch(proc, cmd)
	}
	return map[string]any{"process": proc.id, "pid": proc.pid}
}

func (p *process) closeLogs() {
	p.logs[output.Stdout].Close()
	p.logs[output.Stderr].Close()
}

// Memory returns the memory of its output (budget.EndedProcess).
func (p *process) Memory() int64 {
	return p.logs[output.Stdout].Memory() + p.logs[output.Stderr].Memory()
}

// DropOutput releases the memory of its output (budget.EndedProcess).
func (p *process) DropOutput() int64 {
	return p.logs[output.Stdout].DropOutput() + p.logs[output.Stderr].DropOutput()
}

// keep remembers an ended process, and forgets those that History.Add returns.
func (p *process) keep(r *Registry) {
	for _, entry := range r.history.Add(p.scope, p) {
		r.drop(entry.(*process))
	}
	r.mu.Lock()
	known := r.all[p.id] == p
	r.mu.Unlock()
	if !known { // the slot has ended, or proc.forget came first
		r.history.Remove(p)
	}
}

// drop forgets a process and frees its output.
func (r *Registry) drop(p *process) {
	r.mu.Lock()
	delete(r.all, p.id)
	r.mu.Unlock()
	r.history.Remove(p)
	if p.keepLogs() { // otherwise they are closed with the slot
		p.logs[output.Stdout].Discard()
		p.logs[output.Stderr].Discard()
	}
}

// FreeMemory makes room in the budget: first it drops memory of output that files have too, then
// the output of ended processes (History.Reclaim). All slots together may keep a quarter of the
// budget, whatever their neighbours print.
func (r *Registry) FreeMemory(need int64, slots int) (freed int64) {
	r.mu.Lock()
	all, share := slices.Collect(maps.Values(r.all)), r.memory.Limit()/4/int64(max(1, slots))
	r.mu.Unlock()
	use := map[any]int64{}
	for _, p := range all {
		freed += p.logs[output.Stdout].Shrink() + p.logs[output.Stderr].Shrink()
		use[p.scope] += p.Memory()
	}
	return freed + r.history.Reclaim(need-freed, use, share)
}

// watch reads the output of the process and waits for its end.
func (r *Registry) watch(p *process, cmd *command.Command) {
	defer channel.Contain(r.log, "process")
	pumps := cmd.Pumps(p.sink)
	pumps.Start()
	var exit ipc.Exit
	select {
	case exit = <-cmd.Exit:
	case <-p.scope.Context().Done():
	}
	if p.scope.Err() != nil {
		cmd.ClosePipes()
		return
	}
	result := &command.Result{Started: true, DurationS: time.Since(cmd.Started).Seconds()}
	result.SetExit(exit)
	drained := make(chan struct{})
	go func() {
		pumps.Finish()
		p.logs[output.Stdout].End()
		p.logs[output.Stderr].End()
		close(drained)
	}()
	timer := time.NewTimer(drainTimeout)
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
	p.scope.Views.End(p.token, result.ExitCode)
}

func (p *process) sink(stream int) func([]byte) {
	return func(piece []byte) {
		p.scope.Views.Output(p.token, stream, piece)
		p.logs[stream].Write(piece)
	}
}

func (p *process) finish(result *command.Result) {
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

// result returns nil while the process runs. Its counts are the current counts of the logs.
func (p *process) result() *command.Result {
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
	// Only the start time comes from the wall clock, which may jump.
	f.AgeS = time.Since(p.startedAt).Seconds()
	if f.Exit != nil {
		f.AgeS = p.endTime().Sub(p.startedAt).Seconds()
		at := f.StartedAt + f.AgeS
		f.EndedAt = &at
	}
	return f
}
