package initproc

import (
	"os"
	"os/signal"
	"syscall"
)

// Termination is a SIGTERM that arrived.
type Termination struct{}

// IsFromInside returns false: on this system no tenant has a whole sandbox.
func (Termination) IsFromInside() bool { return false }

func receiveTerminations(out chan<- Termination) {
	in := make(chan os.Signal, 1)
	signal.Notify(in, syscall.SIGTERM)
	go func() {
		for range in {
			out <- Termination{}
		}
	}()
}
