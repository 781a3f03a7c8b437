package pipe

import (
	"os"
	"sync"
	"syscall"

	"hermes-exec/runner/internal/wire"
)

// Buffers have the size of the largest piece of data.
var Buffers = sync.Pool{New: func() any { return new([wire.MaxData]byte) }}

// Source is the runner's end of a pipe or a terminal. It becomes a file, which the runtime's poller
// watches, only when it is waited for.
//
// Not the obvious code: see docs/why-not-obvious.md ("Late readers and late events").
type Source struct {
	FD   int
	File *os.File
}

// OpenFile returns the end as a file that can be waited for.
func (s *Source) OpenFile() *os.File {
	if s.File == nil {
		s.File = os.NewFile(uintptr(s.FD), "pipe")
	}
	return s.File
}

// Use passes the descriptor to f, which must not block.
func (s *Source) Use(f func(fd uintptr)) error {
	if s.File == nil {
		f(uintptr(s.FD))
		return nil
	}
	raw, err := s.File.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}

// Close closes the end.
func (s *Source) Close() {
	if s.File != nil {
		_ = s.File.Close()
		return
	}
	_ = syscall.Close(s.FD)
}

// Read reads once and retries after a signal. EAGAIN means that no data is there yet.
func Read(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
			return n, err
		}
	}
}

// NewFile is New with the runner's end as a file.
func NewFile(readable bool) (ours *os.File, theirs int, err error) {
	fd, theirs, err := New(readable)
	if err != nil {
		return nil, -1, err
	}
	return os.NewFile(uintptr(fd), "pipe"), theirs, nil
}

// New makes a pipe. The runner's end does not block, the other end does. readable selects the
// reading end for the runner.
func New(readable bool) (ours, theirs int, err error) {
	r, w, err := rawPipe()
	if err != nil {
		return -1, -1, &wire.Error{Kind: "exhausted", Message: "no pipe is available: " + err.Error()}
	}
	mine, other := w, r
	if readable {
		mine, other = r, w
	}
	if err := setNonblocking(mine); err != nil {
		CloseFDs([]int{r, w})
		return -1, -1, err
	}
	return mine, other, nil
}

// Duplicate returns a copy of a descriptor that no program inherits.
func Duplicate(fd int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	copied, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(copied)
	}
	return copied, err
}

// CloseFDs closes all of them.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

// Files wraps descriptors that another process has sent.
func Files(fds []int) []*os.File {
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "from-agent")
	}
	return files
}

// CloseFiles closes all of them.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
