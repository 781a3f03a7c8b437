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
	var one [1]byte
	for {
		if _, err := syscall.Read(b.pipe[0], one[:]); err != syscall.EINTR {
			return
		}
	}
}
