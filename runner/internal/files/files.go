package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/node"
	"hermes-exec/runner/internal/search"
)

// Env is the environment of an operation besides the calling thread's rights and view.
type Env struct {
	Workdir string // absolute; relative paths start here
	Tmp     string // for contents that cannot be stored beside their file
}

func (e Env) spareDir() string {
	if e.Tmp == "" {
		return os.TempDir()
	}
	return e.Tmp
}

// request is one operation with its data streams.
type request struct {
	ctx context.Context
	env Env
	op  ipc.FileOp
	in  io.Reader // the bytes of file.write and file.put_tree
	out io.Writer // the destination of file.read and file.get_tree; nil when inline
}

type method func(r *request) (result any, err error)

var methods = map[string]method{
	"file.write": writeFile, "file.stat": statFile, "file.list": listDir, "file.mkdir": makeDir,
	"file.remove": removePath,
	"file.move":   movePath, "file.copy": copyPath, "file.chmod": chmodPath, "file.put_tree": putTree,
	"file.get_tree": getTree,
	"file.search":   searchTree, "file.glob": globTree,
}

// Do carries out op until ctx ends. data is the end of a pipe that came with it, or nil; Do closes
// it. Errors are of type *ipc.Error.
func Do(ctx context.Context, env Env, op ipc.FileOp, data *os.File) (ipc.FileResult, error) {
	r := &request{ctx: ctx, env: env, op: op, in: bytes.NewReader(op.Inline)}
	if data != nil {
		defer data.Close()
		s, err := newStream(data)
		if err != nil {
			return ipc.FileResult{}, convert("", err)
		}
		defer s.Close()
		r.in, r.out = s, s
		if op.Committed {
			r.in = &committedReader{source: s}
		}
	}
	// The operation may have waited for its thread.
	if err := search.CheckCanceled(ctx); err != nil {
		return ipc.FileResult{}, err
	}
	if op.Method == "file.read" {
		result, err := readFile(r)
		return result, convert("", err)
	}
	do := methods[op.Method]
	if do == nil {
		return ipc.FileResult{}, badRequest("unknown method %q", op.Method)
	}
	value, err := do(r)
	if err != nil {
		return ipc.FileResult{}, convert("", err)
	}
	return encode(value)
}

func encode(value any) (ipc.FileResult, error) {
	if value == nil {
		return ipc.FileResult{Result: json.RawMessage("{}")}, nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return ipc.FileResult{}, &ipc.Error{Kind: "internal", Message: err.Error()}
	}
	return ipc.FileResult{Result: raw}, nil
}

func searchTree(r *request) (any, error) { return search.Search(r.ctx, r.env.Workdir, r.op.Params) }

func globTree(r *request) (any, error) { return search.Glob(r.ctx, r.env.Workdir, r.op.Params) }

// decode reads the params of a request. A wrong type is the caller's mistake.
func (r *request) decode(into any) error {
	if len(r.op.Params) == 0 {
		return badRequest("%s: no params", r.op.Method)
	}
	if err := json.Unmarshal(r.op.Params, into); err != nil {
		return badRequest("%s: %v", r.op.Method, err)
	}
	return nil
}

// resolve makes a path absolute. It does not clean the path: the kernel interprets `..` after a
// symbolic link.
func (r *request) resolve(path ipc.Bytes) (string, error) {
	return search.Resolve(r.env.Workdir, string(path))
}

func badRequest(format string, args ...any) error {
	return &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf(format, args...)}
}

// newIrregularError returns the error for a file that should be regular and is not.
func newIrregularError(path string, mode fs.FileMode) error {
	return &ipc.Error{Kind: "os", Errno: "EINVAL", Path: ipc.Bytes(path),
		Message: fmt.Sprintf("%s: is a %s, not a regular file", path, node.TypeName(mode))}
}

// convert converts an error to the form of the link, with path if the error has none.
func convert(path string, err error) error {
	if err == nil {
		return nil
	}
	var done *ipc.Error
	if errors.As(err, &done) {
		return done
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return &ipc.Error{Kind: "internal", Message: err.Error(), Path: ipc.Bytes(path)}
	}
	if path == "" {
		path = pathOf(err)
	}
	return &ipc.Error{Kind: "os", Errno: ipc.ErrnoName(errno), Path: ipc.Bytes(path),
		Message: strings.TrimPrefix(path+": "+errno.Error(), ": ")}
}

func pathOf(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Path
	}
	var l *os.LinkError
	if errors.As(err, &l) {
		return l.New
	}
	return ""
}

func isErrno(err error, list ...syscall.Errno) bool {
	for _, e := range list {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
