package files

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/pipe"
)

// progressTimeout is how long a transfer may stand still.
var progressTimeout = 60 * time.Second

// stream is the end of a pipe; each read and write must make progress.
type stream struct{ file *os.File }

// newStream duplicates the descriptor of data and makes it non-blocking, because a blocking one has
// no deadlines.
func newStream(data *os.File) (*stream, error) {
	raw, err := data.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(p uintptr) {
		if fd, dupErr = pipe.Duplicate(int(p)); dupErr == nil {
			dupErr = syscall.SetNonblock(fd, true)
		}
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
		return nil, err
	}
	return &stream{file: os.NewFile(uintptr(fd), "data")}, nil
}

func (s *stream) Read(p []byte) (int, error) {
	_ = s.file.SetReadDeadline(time.Now().Add(progressTimeout))
	n, err := s.file.Read(p)
	return n, streamError(err)
}

func (s *stream) Write(p []byte) (int, error) {
	total := 0
	for total < len(p) {
		_ = s.file.SetWriteDeadline(time.Now().Add(progressTimeout))
		n, err := s.file.Write(p[total:min(len(p), total+64<<10)])
		total += n
		if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return total, streamError(err)
		}
	}
	return total, nil
}

func (s *stream) Close() error { return s.file.Close() }

func streamError(err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &ipc.Error{Kind: "timeout", Message: "no data moved for " + progressTimeout.String()}
	case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed):
		return errAborted
	}
	return err
}

var errAborted = &ipc.Error{Kind: "canceled", Message: "the data stream was aborted"}

// committedReader passes a stream on without its last byte, which marks the stream as complete (see
// ipc.FileOp.Committed).
type committedReader struct {
	source io.Reader
	buffer [32 << 10]byte
	last   byte
	any    bool
	err    error
}

func (c *committedReader) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if c.err != nil {
			if c.err == io.EOF && (!c.any || c.last != 1) {
				return 0, errAborted
			}
			return 0, c.err
		}
		n, err := c.source.Read(c.buffer[:min(len(p), len(c.buffer))])
		c.err = err
		if n == 0 {
			continue
		}
		out := 0
		if c.any {
			p[0], out = c.last, 1
		}
		out += copy(p[out:], c.buffer[:n-1])
		c.last, c.any = c.buffer[n-1], true
		if out > 0 {
			return out, nil
		}
	}
	return 0, nil
}
