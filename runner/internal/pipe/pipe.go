package pipe

import (
	"os"
	"sync"
	"syscall"

	"hermes-exec/runner/internal/wire"
)

// Buffers are of the size of the largest piece that is sent on.
var Buffers = sync.Pool{New: func() any { return new([wire.MaxData]byte) }}

// Source is our end of a pipe or a terminal. It becomes a file, which the
// runtime's poller is told of, only once it is waited for.
type Source struct {
	FD   int
	File *os.File
}

// OpenFile is the end as a file.
func (s *Source) OpenFile() *os.File {
	if s.File == nil {
		s.File = os.NewFile(uintptr(s.FD), "pipe")
	}
	return s.File
}

// Use gives the descriptor to f, which must not wait.
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

// Close gives it back.
func (s *Source) Close() {
	if s.File != nil {
		_ = s.File.Close()
		return
	}
	_ = syscall.Close(s.FD)
}

// Read reads once, also after a signal; EAGAIN says that nothing is there yet.
func Read(fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(int(fd), p); err != syscall.EINTR {
			return n, err
		}
	}
}

// NewFile is New with our end as a file.
func NewFile(readable bool) (ours *os.File, theirs int, err error) {
	fd, theirs, err := New(readable)
	if err != nil {
		return nil, -1, err
	}
	return os.NewFile(uintptr(fd), "pipe"), theirs, nil
}

// New makes a pipe: our end does not block, theirs does. readable says
// which end is ours.
func New(readable bool) (ours, theirs int, err error) {
	r, w, err := rawPipe()
	if err != nil {
		return -1, -1, &wire.Error{Kind: "exhausted", Message: "no pipe can be had: " + err.Error()}
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

// Duplicate makes a descriptor that no program inherits.
func Duplicate(fd int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	copied, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(copied)
	}
	return copied, err
}

// CloseFDs closes them all.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

// Files makes files of descriptors that another process has sent.
func Files(fds []int) []*os.File {
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "from-agent")
	}
	return files
}

// CloseFiles closes them all.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
