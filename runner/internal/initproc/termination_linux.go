package initproc

import (
	"encoding/binary"
	"os"
	"syscall"
)

// Termination is a SIGTERM that arrived.
type Termination struct {
	code   int32 // si_code: 0 or more for kill(2) and the kernel, whose sender cannot be forged
	sender int32 // pid in this namespace; 0 for another pid namespace
}

// IsFromInside reports whether the signal came from a process of this pid namespace. The parent
// does not count as outside: it may pass on a signal of the tenant.
func (t Termination) IsFromInside() bool { return t.code < 0 || t.sender != 0 }

// The handler writes the beginning of the siginfo_t of each SIGTERM to this pipe, because the Go
// runtime does not report the sender of a signal.
var (
	terminationPipe    int32 //lint:ignore U1000 the handler reads it
	terminationHandler uintptr
)

const siginfoSize = 24

// receiveTerminations replaces the runtime's handler of SIGTERM. It must be called once only.
func receiveTerminations(out chan<- Termination) {
	var ends [2]int
	// A write never blocks: the handler may run on any thread.
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
