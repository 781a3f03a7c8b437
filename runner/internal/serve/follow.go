package serve

import (
	"io"
	"os"
	"time"
)

// followInterval is how soon the end of the driver's process is noticed.
const followInterval = time.Second

// Follow ends the runner when the driver's process has ended: nobody will come back then, and
// nothing has to wait for the lease. A stream that breaks while the driver lives changes nothing.
func (s *Server) Follow(ended func() bool) {
	ticks := time.NewTicker(followInterval)
	defer ticks.Stop()
	for !ended() {
		select {
		case <-ticks.C:
		case <-s.ctx.Done():
			return
		}
	}
	s.driverEnded()
}

// FollowStdin is Follow for a driver that holds the other end of standard input.
func (s *Server) FollowStdin() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.driverEnded()
}

func (s *Server) driverEnded() { s.End("shutdown", "the driver's process has ended") }
