package serve

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/wire"
)

var readBuffers = sync.Pool{New: func() any { return new([wire.MaxData]byte) }}

// manyFragments is where a reader starts to wait for more bytes at a time.
const (
	manyFragments = 1024
	fragmentPause = 5 * time.Millisecond
)

// pump reads one pipe of a command. It never waits for the end of the pipe
// once the command has ended: what is there is taken, and what others write
// later is thrown away, so that they neither block nor get SIGPIPE.
type pump struct {
	slot *slotState
	file *os.File
	sink func(p []byte)
	done chan struct{} // the sink has had everything
	once sync.Once
}

func startPump(slot *slotState, file *os.File, sink func(p []byte)) *pump {
	p := &pump{slot: slot, file: file, sink: sink, done: make(chan struct{})}
	go p.run()
	return p
}

// finish is called when the command has ended; it returns when all that it
// wrote was taken.
func (p *pump) finish() {
	_ = p.file.SetReadDeadline(time.Unix(1, 0))
	<-p.done
}

func (p *pump) finished() { p.once.Do(func() { close(p.done) }) }

func (p *pump) run() {
	defer contain(p.slot.log, "output")
	defer p.finished()
	raw, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	n := 0
	var scratch *[wire.MaxData]byte
	// The buffer is held only while there is something to read.
	read := func(fd uintptr) bool {
		scratch = readBuffers.Get().(*[wire.MaxData]byte)
		var err error
		for {
			if n, err = syscall.Read(int(fd), scratch[:]); err != syscall.EINTR {
				break
			}
		}
		if err == syscall.EAGAIN {
			readBuffers.Put(scratch)
			return false
		}
		return true
	}
	for {
		n = 0
		if err := raw.Read(read); err != nil {
			break // the deadline of finish, or closed with the slot
		}
		if n > 0 {
			p.sink(scratch[:n])
		}
		readBuffers.Put(scratch)
		if n <= 0 {
			_ = p.file.Close()
			return
		}
		if n == len(scratch) {
			// A flood takes turns with everybody else.
			runtime.Gosched()
		}
	}
	ended := p.drain(raw)
	p.finished()
	if ended {
		_ = p.file.Close()
		return
	}
	p.slot.keep(p.file)
	defer p.slot.release(p.file)
	_ = p.file.SetReadDeadline(time.Time{})
	for n = 1; n > 0; readBuffers.Put(scratch) {
		n = 0
		if err := raw.Read(read); err != nil {
			return
		}
	}
}

// drain takes what is in the pipe now, and no more: a writer that lives on
// could go on for ever.
func (p *pump) drain(raw syscall.RawConn) (ended bool) {
	scratch := readBuffers.Get().(*[wire.MaxData]byte)
	defer readBuffers.Put(scratch)
	left := -1
	for {
		n := 0
		empty := false
		err := raw.Control(func(fd uintptr) {
			if left < 0 {
				left = waiting(fd)
			}
			var err error
			for {
				// At least one byte is asked for, to notice the end of the pipe.
				if n, err = syscall.Read(int(fd), scratch[:min(max(left, 1), len(scratch))]); err != syscall.EINTR {
					break
				}
			}
			empty = err == syscall.EAGAIN
		})
		switch {
		case empty:
			return false
		case err != nil || n <= 0:
			return true
		}
		p.sink(scratch[:n])
		if left -= n; left <= 0 {
			return false
		}
	}
}
