package search

import (
	"context"
	"io"

	"hermes-exec/runner/internal/ipc"
)

var errCanceled = &ipc.Error{Kind: "canceled", Message: "the operation was cancelled"}

// Canceled is the answer of an operation whose ctx has ended, else nil.
func Canceled(ctx context.Context) error {
	if ctx.Err() != nil {
		return errCanceled
	}
	return nil
}

// Until reads from in as long as ctx lasts.
func Until(ctx context.Context, in io.Reader) io.Reader { return until{ctx, in} }

type until struct {
	ctx context.Context
	in  io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := Canceled(u.ctx); err != nil {
		return 0, err
	}
	return u.in.Read(p)
}
