package agent

import (
	"sync/atomic"
	"syscall"
)

// bell wakes one thread that waits in the kernel, which costs less than to
// change from one of the runtime's threads to another. A ring before the wait
// is not lost; many are as one.
type bell struct {
	pipe [2]int
	set  atomic.Bool // the next ring is to be heard
}

func (b *bell) init() {
	if err := syscall.Pipe(b.pipe[:]); err != nil {
		panic("the agent has no descriptors: " + err.Error())
	}
	syscall.CloseOnExec(b.pipe[0])
	syscall.CloseOnExec(b.pipe[1])
	// Rings that nobody waited for stay in the pipe: one that finds it full has
	// been heard.
	if err := syscall.SetNonblock(b.pipe[1], true); err != nil {
		panic("the agent's bell: " + err.Error())
	}
}

func (b *bell) ring() {
	if b.set.CompareAndSwap(true, false) {
		_, _ = syscall.Write(b.pipe[1], []byte{0})
	}
}

// arm is called before looking for what a ring tells of; wait after there was
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
