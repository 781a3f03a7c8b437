package serve

import (
	"os"
	"runtime"
	"syscall"
)

// yielder lets everybody else go first. Gosched does not: while any goroutine can
// run, the runtime looks for what came on descriptors every 10 ms only, so that
// a flood on its one processor makes all other calls wait for so long. This
// waits for a byte of its own until the runtime has looked.
type yielder struct{ reader, writer *os.File }

// newYielder gives nil where there are no descriptors for it.
func newYielder() *yielder {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil
	}
	return &yielder{reader, writer}
}

func (t *yielder) yield() {
	if t == nil {
		runtime.Gosched()
		return
	}
	raw, err := t.reader.SyscallConn()
	if err != nil {
		return
	}
	one, rung := []byte{0}, false
	_ = raw.Read(func(fd uintptr) bool {
		if !rung {
			// Not before: what came before is not waited for.
			_, err := t.writer.Write(one)
			rung = true
			return err != nil
		}
		_, err := readSome(fd, one)
		return err != syscall.EAGAIN
	})
}

func (t *yielder) close() {
	if t != nil {
		_ = t.reader.Close()
		_ = t.writer.Close()
	}
}
