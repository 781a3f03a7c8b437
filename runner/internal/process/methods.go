package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/pipe"
)

const (
	// followPieceSize is how much a follower sends at once.
	followPieceSize = 64 << 10
	maxRead         = 64 << 20
)

type methodParams struct {
	Process string `json:"process"`
	Stream  *int   `json:"stream"`
	Offset  int64  `json:"offset"`
	// Delimiter is the byte that ends each message of a followed stream.
	Delimiter *byte    `json:"delimiter"`
	Limit     *int64   `json:"limit"`
	TimeoutS  *float64 `json:"timeout_s"`
	Signal    int      `json:"signal"`
	SinceS    float64  `json:"since_s"`
	Rows      uint16   `json:"rows"`
	Cols      uint16   `json:"cols"`
}

// Method carries out one request about an existing process.
type Method func(r *Registry, c *channel.Conversation, params json.RawMessage) (any, error)

// Methods are the methods of docs/protocol.md for one process.
var Methods = map[string]Method{
	"proc.wait":        withProcess((*process).wait),
	"proc.read":        withProcess((*process).read),
	"proc.follow":      withProcess((*process).follow),
	"proc.write":       withProcess((*process).write),
	"proc.close_stdin": withProcess((*process).closeStdin),
	"proc.signal":      withProcess((*process).signal),
	"proc.kill":        withProcess((*process).kill),
	"proc.resize":      withProcess((*process).resize),
	"proc.forget":      (*Registry).forget,
}

// withProcess finds the process of a request and calls do.
func withProcess(do func(p *process, c *channel.Conversation, q *methodParams) (any, error)) Method {
	return func(r *Registry, c *channel.Conversation, params json.RawMessage) (any, error) {
		p, q, err := r.find(params)
		if err != nil {
			return nil, err
		}
		return do(p, c, q)
	}
}

func (r *Registry) find(params json.RawMessage) (*process, *methodParams, error) {
	var q methodParams
	if err := channel.Decode(params, &q); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	p := r.all[q.Process]
	r.mu.Unlock()
	if p == nil {
		const gone = "no process %q: it was closed, or has ended and is forgotten, as a slot remembers the last %d"
		return nil, nil, &ipc.Error{Kind: "no_process", Message: fmt.Sprintf(gone, q.Process, budget.MaxEnded)}
	}
	return p, &q, nil
}

// forget ends a process that still runs, and drops it.
func (r *Registry) forget(_ *channel.Conversation, params json.RawMessage) (any, error) {
	p, _, err := r.find(params)
	if err != nil {
		return nil, err
	}
	var killed any
	if p.result() == nil {
		receipt, err := p.scope.Kill(p.token, 0)
		if err != nil {
			return nil, err
		}
		killed = command.KillResult(receipt)
	}
	r.drop(p)
	return killed, nil
}

// List returns the result of proc.list.
func (r *Registry) List(scope *command.Scope) any {
	var all []*process
	r.mu.Lock()
	for _, p := range r.all {
		if p.scope == scope {
			all = append(all, p)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b *process) int { return a.startedAt.Compare(b.startedAt) })
	list := make([]processFacts, len(all))
	for i, p := range all {
		list[i] = p.facts()
	}
	return map[string]any{"processes": list}
}

func (p *process) wait(c *channel.Conversation, q *methodParams) (any, error) {
	if q.TimeoutS != nil && *q.TimeoutS == 0 {
		return map[string]any{"exit": p.result()}, nil
	}
	if err := command.CheckTimeout(q.TimeoutS); err != nil {
		return nil, err
	}
	expired, stop := command.StartTimer(q.TimeoutS)
	defer stop()
	select {
	case <-p.ended:
	case <-expired:
	case <-c.Ctx.Done():
		return nil, context.Cause(c.Ctx)
	case <-p.scope.Context().Done():
		return nil, p.scope.Err()
	}
	return map[string]any{"exit": p.result()}, nil
}

func (p *process) log(q *methodParams) (*output.Log, error) {
	stream := output.Stdout
	if q.Stream != nil {
		stream = *q.Stream
	}
	if stream != output.Stdout && stream != output.Stderr {
		return nil, channel.BadRequest("stream %d is neither 1 nor 2", stream)
	}
	return p.logs[stream], nil
}

func (p *process) read(c *channel.Conversation, q *methodParams) (any, error) {
	log, err := p.log(q)
	if err != nil {
		return nil, err
	}
	limit := int64(command.DefaultOutputLimit)
	if q.Limit != nil {
		limit = *q.Limit
	}
	if limit < 0 || limit > maxRead {
		return nil, channel.BadRequest("limit %d is not in 0 … %d", limit, maxRead)
	}
	from, next, end := int64(-1), q.Offset, false
	for {
		part, at, last := log.Read(next, int(min(limit, followPieceSize)))
		if from < 0 {
			from, next = at, at
		} else if at != next {
			break // newer bytes have pushed out older ones meanwhile
		}
		if err := c.Send(1, part, true); err != nil {
			return nil, err
		}
		next, limit, end = next+int64(len(part)), limit-int64(len(part)), last
		if len(part) == 0 || last || limit <= 0 {
			break
		}
	}
	return map[string]any{"offset": from, "next_offset": next, "end": end}, nil
}

func (p *process) follow(c *channel.Conversation, q *methodParams) (any, error) {
	log, err := p.log(q)
	if err != nil {
		return nil, err
	}
	ctx, leave := p.scope.Join(c.Ctx)
	defer leave()
	f := log.Follow(q.Offset, q.Delimiter)
	for {
		data, ok := f.Next(ctx, followPieceSize)
		if !ok {
			break
		}
		if err := c.Send(1, data, false); err != nil {
			f.Close()
			return nil, err
		}
		f.Advance(len(data))
	}
	next, lost := f.Close()
	if p.scope.Err() != nil {
		return nil, p.scope.Err()
	}
	// A follower that is cancelled reports its position.
	return map[string]any{"next_offset": next, "lost_bytes": lost}, nil
}

var (
	errNoStdin  = channel.BadRequest("the process was started without stdin, or it was closed")
	errEnded    = &ipc.Error{Kind: "os", Errno: "EPIPE", Message: "the process has ended"}
	errNoTarget = &ipc.Error{Kind: "os", Errno: "ESRCH", Message: "the process has ended"}
)

// stdinError distinguishes a process without input from a process that has ended.
func (p *process) stdinError() error {
	if p.result() != nil {
		return errEnded
	}
	return errNoStdin
}

func (p *process) write(c *channel.Conversation, _ *methodParams) (any, error) {
	if p.stdin == nil {
		return nil, p.stdinError()
	}
	written := int64(0)
	err := p.toStdin(c, func(ctx context.Context) error {
		_, err := c.Receive(ctx, func(piece []byte) error {
			n, err := p.enter(piece)
			written += int64(n)
			return err
		})
		return err
	})
	switch {
	case p.scope.Err() != nil:
		return nil, p.scope.Err()
	case c.Ctx.Err() != nil: // cancelled: report how much was written
	case p.input.Err() != nil && !(err == nil && written > 0):
		// A process that ends once it has its input took all that was written.
		return nil, context.Cause(p.input)
	case errors.Is(err, os.ErrClosed):
		return nil, errEnded // a terminal closes with its process
	case err != nil:
		return nil, err
	}
	return map[string]any{"written": written}, nil
}

// toStdin lets one request at a time write to the input, until the request is cancelled or the
// input ends.
func (p *process) toStdin(c *channel.Conversation, write func(context.Context) error) error {
	ctx, leave := command.Join(c.Ctx, p.input)
	defer leave()
	select {
	case p.writeLock <- struct{}{}:
		defer func() { <-p.writeLock }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = p.stdin.SetWriteDeadline(time.Unix(1, 0))
		close(late)
	})
	defer func() {
		if !stop() {
			<-late // otherwise the deadline could hit the next request
		}
		_ = p.stdin.SetWriteDeadline(time.Time{})
	}()
	return write(ctx)
}

func (p *process) closeStdin(c *channel.Conversation, _ *methodParams) (any, error) {
	switch {
	case p.stdin == nil:
		return nil, p.stdinError()
	case p.terminal != nil:
		err := p.toStdin(c, func(context.Context) error {
			end, disabled := p.endOfInput()
			if disabled {
				return nil
			}
			_, err := p.stdin.Write(end)
			return err
		})
		if err != nil && p.result() == nil {
			return nil, err
		}
		return nil, nil
	}
	p.endInput(errNoStdin)
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return nil, err
	}
	return nil, nil
}

func (p *process) signal(c *channel.Conversation, q *methodParams) (any, error) {
	if q.Signal < 1 || q.Signal > 64 {
		return nil, channel.BadRequest("signal %d", q.Signal)
	}
	ctx, leave := p.scope.Join(c.Ctx)
	defer leave()
	_, err := p.scope.Agent().Call(ctx, ipc.OpSignal, ipc.Signal{Token: p.token, Number: q.Signal}, nil)
	return nil, err
}

func (p *process) kill(_ *channel.Conversation, q *methodParams) (any, error) {
	if q.SinceS < 0 || q.SinceS > 1e15 {
		return nil, channel.BadRequest("since_s %v", q.SinceS)
	}
	receipt, err := p.scope.Kill(p.token, uint64(q.SinceS*100))
	return command.KillResult(receipt), err
}

func (p *process) resize(_ *channel.Conversation, q *methodParams) (any, error) {
	if q.Rows == 0 || q.Cols == 0 {
		return nil, channel.BadRequest("a terminal has at least one row and one column")
	}
	if p.result() != nil {
		return nil, errNoTarget
	}
	if p.terminal == nil {
		return nil, channel.BadRequest("the process has no terminal")
	}
	raw, err := p.terminal.SyscallConn()
	if err != nil {
		return nil, err
	}
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) { errno = pipe.SetWindow(fd, q.Rows, q.Cols) }); err != nil {
		return nil, err
	}
	if errno != 0 {
		return nil, errno
	}
	return nil, nil
}
