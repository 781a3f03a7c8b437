package agent

import (
	"sync/atomic"
	"syscall"
)

// bell wakes one thread that waits in the kernel, which costs less than a
// switch between threads of the Go runtime. A ring before the wait is not lost;
// several count as one.
type bell struct {
	pipe [2]int
	set  atomic.Bool // the next ring has to be written
}

func (b *bell) init() {
	if err := syscall.Pipe(b.pipe[:]); err != nil {
		panic("the agent has no descriptors: " + err.Error())
	}
	syscall.CloseOnExec(b.pipe[0])
	syscall.CloseOnExec(b.pipe[1])
	// Unread rings stay in the pipe: when it is full, one more is not needed.
	if err := syscall.SetNonblock(b.pipe[1], true); err != nil {
		panic("the agent's bell: " + err.Error())
	}
}

func (b *bell) ring() {
	if b.set.CompareAndSwap(true, false) {
		_, _ = syscall.Write(b.pipe[1], []byte{0})
	}
}

// arm is called before looking for what a ring announces, wait when there was
// nothing.
func (b *bell) arm() { b.set.Store(true) }

func (b *bell) wait() {
	var rings [512]byte
	for {
		if _, err := syscall.Read(b.pipe[0], rings[:]); err != syscall.EINTR {
			return
		}
	}
}
