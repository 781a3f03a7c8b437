package command

import (
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/wire"
)

// Pump reads one pipe of a command. It does not wait for the end of the pipe once the command has
// ended: it takes the pending output. Later output of other processes is thrown away, so that they
// neither block nor get SIGPIPE.
type Pump struct {
	scope    *Scope
	source   *pipe.Source
	sink     func(p []byte)
	deferred bool // started by StartLate: nothing is expected before the command ends
	borrowed bool // another closes it; output after the command's end stays unread
	// terminal: programs may close it for a while and open it again. Closing the runner's end sends
	// SIGHUP to the processes on it.
	terminal bool
	started  bool
	flood    pipe.Yielder
	ending   chan struct{} // closed when the command has ended
	done     chan struct{} // closed when the sink has everything
	once     sync.Once
}

// Pumps are the pumps of one command. Their methods belong to one goroutine.
type Pumps []*Pump

// Pumps returns the pumps for the output of a command, with a sink for each stream.
func (c *Command) Pumps(sink func(stream int) func([]byte)) Pumps {
	all := Pumps{{scope: c.Scope, source: c.stdout, sink: sink(output.Stdout), terminal: c.Terminal() != nil}}
	if c.stderr != nil {
		all = append(all, &Pump{scope: c.Scope, source: c.stderr, sink: sink(output.Stderr)})
	}
	return all
}

// NewSavedPump returns a pump for the state that a session's shell saves, which is read once the
// command has ended or takes long. The caller closes the source.
func NewSavedPump(scope *Scope, source *pipe.Source, sink func([]byte)) *Pump {
	return &Pump{scope: scope, source: source, sink: sink, deferred: true, borrowed: true}
}

// Start begins to read; it may be called again.
func (ps Pumps) Start() { ps.begin(false) }

// StartLate begins to read the deferred pipes too.
func (ps Pumps) StartLate() { ps.begin(true) }

func (ps Pumps) begin(late bool) {
	for _, p := range ps {
		if !p.started && (late || !p.deferred) {
			p.started, p.ending, p.done = true, make(chan struct{}), make(chan struct{})
			_ = p.source.OpenFile()
			go p.run()
		}
	}
}

// Finish is called when the command has ended. It returns when all output of the command was taken.
func (ps Pumps) Finish() {
	for _, p := range ps {
		if p.started {
			_ = p.source.File.SetReadDeadline(time.Unix(1, 0))
			close(p.ending)
			<-p.done
			continue
		}
		ended := p.drain()
		if p.borrowed {
			continue
		}
		if ended {
			p.source.Close()
			continue
		}
		_ = p.source.OpenFile()
		go func() {
			defer channel.Contain(p.scope.log, "output")
			p.discard()
		}()
	}
}

func (p *Pump) markDone() { p.once.Do(func() { close(p.done) }) }

func (p *Pump) run() {
	defer channel.Contain(p.scope.log, "output")
	defer p.markDone()
	defer p.flood.Close()
	for {
		n, err := p.readFairly(p.sink)
		if err != nil {
			break // the deadline of Finish, or closed with the slot
		}
		if n <= 0 && p.terminal {
			p.awaitReopening()
			continue
		}
		if n <= 0 {
			p.source.Close()
			return
		}
	}
	ended := p.drain()
	p.markDone()
	if p.borrowed {
		return
	}
	if ended {
		p.source.Close()
		return
	}
	p.discard()
}

// awaitReopening waits a moment for a program that has closed its terminal, as many do when they
// end: it may open the terminal again.
func (p *Pump) awaitReopening() {
	const pause = 50 * time.Millisecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-p.ending:
	case <-p.scope.ctx.Done():
	case <-timer.C:
	}
}

// discard reads the output of other processes until they end or the slot does.
func (p *Pump) discard() {
	file := p.source.File
	p.scope.keepPipe(file)
	defer p.scope.releasePipe(file)
	defer p.flood.Close()
	_ = file.SetReadDeadline(time.Time{})
	for {
		if n, err := p.readFairly(func([]byte) {}); n <= 0 || err != nil {
			return
		}
	}
}

// readFairly reads once, and lets other goroutines go first after a full buffer.
func (p *Pump) readFairly(sink func([]byte)) (n int, err error) {
	if n, err = p.read(sink); n == wire.MaxData {
		p.flood.Yield()
	}
	return n, err
}

// read waits for output and passes it on; 0 bytes are the end of the pipe. A buffer is held only
// while it has data.
func (p *Pump) read(sink func([]byte)) (n int, err error) {
	raw, err := p.source.File.SyscallConn()
	if err != nil {
		return 0, err
	}
	var scratch *[wire.MaxData]byte
	err = raw.Read(func(fd uintptr) bool {
		scratch = pipe.Buffers.Get().(*[wire.MaxData]byte)
		var err error
		if n, err = pipe.Read(fd, scratch[:]); err == syscall.EAGAIN {
			pipe.Buffers.Put(scratch)
			return false
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	defer pipe.Buffers.Put(scratch)
	if n > 0 {
		sink(scratch[:n])
	}
	return n, nil
}

// DiscardPending throws away the pending bytes of a pipe.
func DiscardPending(source *pipe.Source) {
	(&Pump{source: source, sink: func([]byte) {}}).drain()
}

// terminalBufferSize is above the output that a terminal buffers: 64 KiB, and 4 KiB that were
// passed on.
const terminalBufferSize = 128 << 10

// drain takes the pending output and does not wait for more, because another writer could continue
// for ever.
func (p *Pump) drain() (ended bool) {
	scratch := pipe.Buffers.Get().(*[wire.MaxData]byte)
	defer pipe.Buffers.Put(scratch)
	left := -1
	for {
		n := 0
		var failed error
		err := p.source.Use(func(fd uintptr) {
			switch {
			case left >= 0:
			case p.terminal: // FIONREAD counts only output that the kernel has passed on yet
				left = terminalBufferSize
			default:
				left = pipe.PendingBytes(fd)
			}
			// At least one byte is requested, to notice the end of the pipe.
			n, failed = pipe.Read(fd, scratch[:min(max(left, 1), len(scratch))])
		})
		switch {
		case failed == syscall.EAGAIN:
			return false
		case err != nil || n <= 0:
			return true
		}
		p.sink(scratch[:n])
		if left <= 0 {
			return false
		}
		left -= n
	}
}
