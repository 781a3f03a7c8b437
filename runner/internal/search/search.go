package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"syscall"

	"hermes-exec/runner/internal/ipc"
)

const (
	defaultLimit   = 100
	maxLimit       = 20_000
	maxContext     = 100
	defaultMaxLine = 500
	maxMaxLine     = 64 << 10
	// maxPattern is less than a third of lineOverlap: a character of the pattern may have three times as
	// many bytes in the file, such as the Kelvin sign for a k.
	maxPattern = 16 << 10
	// maxAnswer keeps a result below the size of one RESPONSE.
	maxAnswer = 16 << 20
)

type params struct {
	Pattern     ipc.Bytes  `json:"pattern"`
	Path        ipc.Bytes  `json:"path"`
	Regex       *bool      `json:"regex"`
	IgnoreCase  bool       `json:"ignore_case"`
	Target      string     `json:"target"`
	Glob        *ipc.Bytes `json:"glob"`
	Context     int        `json:"context"`
	Limit       *int       `json:"limit"`
	Offset      int        `json:"offset"`
	Hidden      bool       `json:"hidden"`
	IgnoreFiles *bool      `json:"ignore_files"`
	MaxLine     int        `json:"max_line"`

	limit int
}

// Match is one line that matches; Column counts bytes from 1.
type Match struct {
	Path   ipc.Bytes   `json:"path"`
	Line   int         `json:"line"`
	Column int         `json:"column"`
	Text   ipc.Bytes   `json:"text"`
	Before []ipc.Bytes `json:"before"`
	After  []ipc.Bytes `json:"after"`
}

// File is a file with matches, or a file that matches a glob.
type File struct {
	Path  ipc.Bytes `json:"path"`
	Count int       `json:"count"`
	MTime float64   `json:"mtime"`
}

// Result is the result of file.search.
type Result struct {
	Matches    []Match  `json:"matches"`
	Files      []File   `json:"files"`
	Total      int      `json:"total"`
	TotalFiles int      `json:"total_files"`
	Truncated  bool     `json:"truncated"`
	Skipped    skips    `json:"skipped"`
	Errors     []string `json:"errors"`
}

func newResult() *Result {
	return &Result{Matches: []Match{}, Files: []File{}, Skipped: skips{}, Errors: []string{}}
}

func badRequest(format string, args ...any) error {
	return &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf(format, args...)}
}

func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

func osError(path string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return &ipc.Error{Kind: "os", Errno: ipc.ErrnoName(errno), Path: ipc.Bytes(path), Message: path + ": " +
		errno.Error()}
}

// Search carries out file.search until ctx ends.
func Search(ctx context.Context, workdir string, raw json.RawMessage) (*Result, error) {
	var p params
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, badRequest("file.search: %v", err)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	root, err := Resolve(workdir, string(p.Path))
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, osError(root, err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, &ipc.Error{Kind: "os", Errno: "EINVAL", Path: ipc.Bytes(root), Message: root +
			": is neither a directory nor a regular file"}
	}
	where, err := p.place(workdir)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if root, err = Resolve(workdir, where.base); err != nil {
			return nil, err
		}
		if exists, err := isDirectory(workdir, where); err != nil || !exists {
			return newResult(), err
		}
	}
	if p.Target == "files" {
		return p.listFiles(ctx, where, root, info)
	}
	re, err := p.compile()
	if err != nil {
		return nil, err
	}
	return newContentSearch(ctx, &p, re).run(where, root, info)
}

func (p *params) check() error {
	switch {
	case p.Offset < 0 || p.Context < 0 || p.MaxLine < 0 || (p.Limit != nil && *p.Limit < 0):
		return badRequest("offset, context, limit and max_line must not be negative")
	case p.Target != "" && p.Target != "content" && p.Target != "files":
		return badRequest("target %q is neither content nor files", p.Target)
	case p.Pattern == "" && p.Target != "files":
		return badRequest("the pattern is empty")
	}
	p.limit = defaultLimit
	if p.Limit != nil {
		p.limit = min(*p.Limit, maxLimit)
	}
	p.Context = min(p.Context, maxContext)
	if p.MaxLine == 0 {
		p.MaxLine = defaultMaxLine
	}
	p.MaxLine = min(p.MaxLine, maxMaxLine)
	if p.Path == "" {
		p.Path = "."
	}
	return nil
}

func (p *params) isFixed() bool {
	return p.Regex != nil && !*p.Regex
}

func (p *params) compile() (*regexp.Regexp, error) {
	pattern := string(p.Pattern)
	if len(pattern) > maxPattern {
		return nil, badRequest("a pattern of %d bytes is over the limit of %d bytes: search for a part of it",
			len(pattern), maxPattern)
	}
	if p.isFixed() {
		pattern = regexp.QuoteMeta(pattern)
	}
	if p.IgnoreCase {
		pattern = "(?i:" + pattern + ")"
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, badRequest("invalid regular expression: %v. Escape special characters with a backslash; "+
			"look-around and back references are not supported", err)
	}
	if requires(re, '\n') {
		return nil, badRequest("the pattern matches only text with a line end (\\n), but each line is searched by " +
			"itself: search for one of the lines, with context for the lines around it")
	}
	return re, nil
}

func (p *params) walker(ctx context.Context, where place) *walker {
	return &walker{ctx: ctx, hidden: p.Hidden || where.hidden, maxDepth: where.depth, wanted: where.wants,
		display: where.base, ignoreFiles: p.IgnoreFiles == nil || *p.IgnoreFiles, errors: []string{}}
}

// finish adds what the walk left out, and its errors.
func (r *Result) finish(w *walker) {
	r.Errors = append(r.Errors, w.errors...)
	r.Skipped = append(r.Skipped, w.skipped...)
	if w.stopped {
		r.Truncated = true
		r.Errors = append(r.Errors, fmt.Sprintf("stopped after %s: the totals count only entries visited until then",
			maxDuration))
	}
}
