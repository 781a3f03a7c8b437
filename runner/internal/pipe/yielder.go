package pipe

import (
	"os"
	"runtime"
	"syscall"
)

// Yielder lets all other goroutines run first, including those that wait for descriptors. Gosched
// does not: while any goroutine can run, the runtime polls descriptors only every 10 ms, so that a
// flood on its one processor delays all other calls by that time. Yielder waits for a byte of its
// own until the runtime has polled. The zero value has no descriptors until it is used.
//
// Not the obvious code: see docs/why-not-obvious.md ("Yielding to the poller").
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
			// Not earlier: the wait must begin after the write.
			_, err := y.writer.Write(one)
			level = true
			return err != nil
		}
		_, err := Read(fd, one)
		return err != syscall.EAGAIN
	})
}

// Close closes the descriptors.
func (y *Yielder) Close() {
	if y.reader != nil {
		_ = y.reader.Close()
		_ = y.writer.Close()
		y.reader, y.writer = nil, nil
	}
}
