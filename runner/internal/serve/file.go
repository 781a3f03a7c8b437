package serve

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/wire"
)

const (
	// progressTimeout is how long a file operation may stand still.
	progressTimeout = 60 * time.Second
	// treeTimeout bounds operations over a whole tree that report no progress.
	treeTimeout = 30 * time.Minute
	// commitByte ends complete data (ipc.FileOp.Committed).
	commitByte = 1
)

var errNoProgress = &wire.Error{Kind: "timeout", Message: "the file operation made no progress for 60 s"}

// fileMethods maps each method to the way in which it moves data.
var fileMethods = map[string]func(*fileCall) (any, error){
	"file.read": (*fileCall).read, "file.get_tree": (*fileCall).fetch,
	"file.write": (*fileCall).write, "file.put_tree": (*fileCall).store,
	"file.stat": (*fileCall).simple, "file.mkdir": (*fileCall).simple, "file.move": (*fileCall).tree,
	"file.chmod": (*fileCall).simple,
	"file.list":  (*fileCall).tree, "file.remove": (*fileCall).tree, "file.copy": (*fileCall).tree,
	"file.search": (*fileCall).tree, "file.glob": (*fileCall).tree,
	"slot.workdir": (*fileCall).workdir,
}

func fileMethod(name string, carry func(*fileCall) (any, error)) method {
	return func(s *Server, c *channel.Conversation, params json.RawMessage) (any, error) {
		var p struct {
			Slot   string `json:"slot"`
			User   string `json:"user"`
			Length *int64 `json:"length"`
		}
		if err := channel.Decode(params, &p); err != nil {
			return nil, err
		}
		scope, done, err := s.exec.Use(c.Ctx, p.Slot)
		if err != nil {
			return nil, err
		}
		defer done()
		ctx, leave := scope.Join(c.Ctx)
		defer leave()
		op := ipc.FileOp{Method: name, Params: params, Workdir: ipc.Bytes(scope.Agent().Workdir()), User: p.User}
		result, err := carry(&fileCall{c: c, ctx: ctx, agent: scope.Agent(), op: op, length: p.Length})
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return nil, cause
			}
			return nil, err
		}
		return result, nil
	}
}

// fileCall is one file operation.
type fileCall struct {
	c      *channel.Conversation
	ctx    context.Context
	agent  *link.Agent
	op     ipc.FileOp
	length *int64
}

func (f *fileCall) call(limit time.Duration, fds ...int) (ipc.FileResult, error) {
	var result ipc.FileResult
	ctx := f.ctx
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(f.ctx, limit, errNoProgress)
		defer cancel()
	}
	_, err := f.agent.Call(ctx, ipc.OpFile, f.op, &result, fds...)
	if err != nil && f.ctx.Err() == nil && ctx.Err() != nil {
		err = errNoProgress
	}
	return result, err
}

func (f *fileCall) simple() (any, error) { return f.plain(progressTimeout) }

func (f *fileCall) tree() (any, error) { return f.plain(treeTimeout) }

func (f *fileCall) plain(limit time.Duration) (any, error) {
	result, err := f.call(limit)
	return orEmpty(result.Result), err
}

// workdir sets the directory in which commands start and relative paths begin.
func (f *fileCall) workdir() (any, error) {
	var p struct {
		Path ipc.Bytes `json:"path"`
	}
	if err := channel.Decode(f.op.Params, &p); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(string(p.Path)) {
		return nil, channel.BadRequest("the working directory %q is not absolute", p.Path)
	}
	ctx, cancel := context.WithTimeoutCause(f.ctx, progressTimeout, errNoProgress)
	defer cancel()
	return nil, f.agent.StartIn(ctx, string(p.Path))
}

func orEmpty(result json.RawMessage) any {
	if len(result) == 0 || string(result) == "null" {
		return struct{}{}
	}
	return result
}

// read first requests the bytes inside the answer. A larger file comes through a pipe.
func (f *fileCall) read() (any, error) {
	if f.length == nil || *f.length <= ipc.InlineLimit {
		f.op.Small = true
		result, err := f.call(progressTimeout)
		if err != nil {
			return nil, err
		}
		if !result.TooLarge {
			if err := f.c.Send(1, result.Inline, true); err != nil {
				return nil, err
			}
			return orEmpty(result.Result), nil
		}
		f.op.Small = false
	}
	return f.fetch()
}

type fileAnswer struct {
	result ipc.FileResult
	err    error
}

// begin sends the operation with the agent's end of a pipe.
func (f *fileCall) begin(theirs int) <-chan fileAnswer {
	answer := make(chan fileAnswer, 1)
	go func() {
		result, err := f.call(0, theirs)
		_ = syscall.Close(theirs)
		answer <- fileAnswer{result, err}
	}()
	return answer
}

// fetch sends the bytes that the agent writes into a pipe.
func (f *fileCall) fetch() (any, error) {
	ours, theirs, err := pipe.NewFile(true)
	if err != nil {
		return nil, err
	}
	pipe.Widen(theirs)
	defer ours.Close()
	defer context.AfterFunc(f.ctx, func() { _ = ours.Close() })()
	answer := f.begin(theirs)
	buffer := pipe.Buffers.Get().(*[wire.MaxData]byte)
	defer pipe.Buffers.Put(buffer)
	for {
		_ = ours.SetReadDeadline(time.Now().Add(progressTimeout))
		n, err := ours.Read(buffer[:])
		if n > 0 {
			if err := f.c.Send(1, buffer[:n], false); err != nil {
				return nil, err
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, errNoProgress
		}
		if err != nil {
			break
		}
	}
	return f.finish(answer)
}

func (f *fileCall) finish(answer <-chan fileAnswer) (any, error) {
	timer := time.NewTimer(progressTimeout)
	defer timer.Stop()
	select {
	case a := <-answer:
		return orEmpty(a.result.Result), a.err
	case <-timer.C:
		return nil, errNoProgress
	}
}

// write sends short contents in the message itself.
func (f *fileCall) write() (any, error) {
	var content []byte
	complete, err := f.c.Receive(f.ctx, func(piece []byte) error {
		content = append(content, piece...)
		if len(content) > ipc.InlineLimit {
			return errNotInline
		}
		return nil
	})
	switch {
	case errors.Is(err, errNotInline):
		return f.storeFrom(content)
	case err != nil:
		return nil, err
	case !complete:
		return nil, channel.ErrCanceled
	}
	if content == nil {
		content = []byte{}
	}
	f.op.Inline = content
	return f.simple()
}

var errNotInline = errors.New("too long for a message")

func (f *fileCall) store() (any, error) { return f.storeFrom(nil) }

// storeFrom sends the driver's input to the agent through a pipe; first is the part that was
// already read.
func (f *fileCall) storeFrom(first []byte) (any, error) {
	ours, theirs, err := pipe.NewFile(false)
	if err != nil {
		return nil, err
	}
	pipe.Widen(theirs)
	defer ours.Close()
	defer context.AfterFunc(f.ctx, func() { _ = ours.Close() })()
	f.op.Committed = true
	// The agent notices an early end by its pipe, and answers when it has undone its work.
	whole := *f
	whole.ctx = context.WithoutCancel(f.ctx)
	answer := whole.begin(theirs)
	early := make(chan fileAnswer, 1)
	go func() {
		a := <-answer
		f.c.DiscardInput() // the agent wants no more
		early <- a
	}()
	put := func(piece []byte) error {
		_ = ours.SetWriteDeadline(time.Now().Add(progressTimeout))
		_, err := ours.Write(piece)
		return err
	}
	complete := false
	if err = put(first); err == nil {
		complete, err = f.c.Receive(f.ctx, put)
	}
	if err == nil && complete {
		err = put([]byte{commitByte})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errNoProgress
	}
	_ = ours.Close()
	return f.finish(early)
}
