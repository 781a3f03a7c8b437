package initproc

import (
	"encoding/binary"
	"os"
	"syscall"
)

// Termination is a SIGTERM that arrived.
type Termination struct {
	code   int32 // how it was sent: not below 0 by kill(2) or the kernel, whose statement of the sender is true
	sender int32 // as numbered here; 0 of another pid namespace
}

// IsFromInside says whether it came from a process of this pid namespace. The
// parent may be one that passes on what a tenant has sent to it.
func (t Termination) IsFromInside() bool { return t.code < 0 || t.sender != 0 }

// The handler writes the beginning of the siginfo_t of each SIGTERM to this
// pipe. The Go runtime's own does not tell who sent a signal.
var (
	terminationPipe    int32 //lint:ignore U1000 the handler reads it
	terminationHandler uintptr
)

const siginfoSize = 24

// receiveTerminations replaces the runtime's handler of SIGTERM. It is called
// once.
func receiveTerminations(out chan<- Termination) {
	var ends [2]int
	// A write never waits: the handler may run on any thread.
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return // SIGTERM then does nothing
	}
	terminationPipe = int32(ends[1])
	handle(syscall.SIGTERM, terminationHandler)
	go func() {
		in := os.NewFile(uintptr(ends[0]), "terminations")
		var info [siginfoSize]byte
		for {
			if _, err := in.Read(info[:]); err != nil {
				return
			}
			out <- Termination{
				code:   int32(binary.NativeEndian.Uint32(info[8:])),
				sender: int32(binary.NativeEndian.Uint32(info[16:])),
			}
		}
	}()
}
