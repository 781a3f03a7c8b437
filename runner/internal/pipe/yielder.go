package pipe

import (
	"os"
	"runtime"
	"syscall"
)

// Yielder lets all other goroutines go first, also those that wait for
// descriptors. Gosched does not: while any goroutine can run, the runtime polls
// descriptors every 10 ms only, so that a flood on its one processor delays all
// other calls by that. This waits for a byte of its own until the runtime has
// polled. The zero value has no descriptors until it is used.
type Yielder struct{ reader, writer *os.File }

// Yield returns when the runtime has polled the descriptors.
func (y *Yielder) Yield() {
	if y.reader == nil {
		var err error
		if y.reader, y.writer, err = os.Pipe(); err != nil {
			runtime.Gosched()
			return
		}
	}
	raw, err := y.reader.SyscallConn()
	if err != nil {
		return
	}
	one, level := []byte{0}, false
	_ = raw.Read(func(fd uintptr) bool {
		if !level {
			// Not before: what came before is not waited for.
			_, err := y.writer.Write(one)
			level = true
			return err != nil
		}
		_, err := Read(fd, one)
		return err != syscall.EAGAIN
	})
}

// Close gives its descriptors back.
func (y *Yielder) Close() {
	if y.reader != nil {
		_ = y.reader.Close()
		_ = y.writer.Close()
		y.reader, y.writer = nil, nil
	}
}
