package bell

import (
	"sync/atomic"
	"syscall"
)

// Bell wakes one thread that waits in the kernel. This costs less than a switch between threads of
// the Go runtime. A ring before the wait is not lost, and several rings count as one.
//
// Not the obvious code: see docs/why-not-obvious.md ("Waiting in the kernel").
type Bell struct {
	pipe [2]int
	set  atomic.Bool // whether the next ring has to be written
}

// Init makes the pipe of the bell.
func (b *Bell) Init() {
	if err := syscall.Pipe(b.pipe[:]); err != nil {
		panic("the agent has no descriptors: " + err.Error())
	}
	syscall.CloseOnExec(b.pipe[0])
	syscall.CloseOnExec(b.pipe[1])
	// Unread rings stay in the pipe. When the pipe is full, another ring is not needed.
	if err := syscall.SetNonblock(b.pipe[1], true); err != nil {
		panic("the agent's bell: " + err.Error())
	}
}

// Ring wakes the thread, now or as soon as it waits.
func (b *Bell) Ring() {
	if b.set.CompareAndSwap(true, false) {
		_, _ = syscall.Write(b.pipe[1], []byte{0})
	}
}

// Arm is called before the thread checks for work, and Wait if there was none.
func (b *Bell) Arm() { b.set.Store(true) }

// Wait blocks until the bell is rung, and returns at once if it was rung since Arm.
func (b *Bell) Wait() {
	var rings [512]byte
	for {
		if _, err := syscall.Read(b.pipe[0], rings[:]); err != syscall.EINTR {
			return
		}
	}
}
