package search

import (
	"context"
	"io"

	"hermes-exec/runner/internal/ipc"
)

var errCanceled = &ipc.Error{Kind: "canceled", Message: "the operation was cancelled"}

// CheckCanceled returns the error of an operation whose ctx has ended, else nil.
func CheckCanceled(ctx context.Context) error {
	if ctx.Err() != nil {
		return errCanceled
	}
	return nil
}

// WithContext returns a reader that reads from in until ctx ends.
func WithContext(ctx context.Context, in io.Reader) io.Reader { return contextReader{ctx, in} }

type contextReader struct {
	ctx context.Context
	in  io.Reader
}

func (u contextReader) Read(p []byte) (int, error) {
	if err := CheckCanceled(u.ctx); err != nil {
		return 0, err
	}
	return u.in.Read(p)
}
