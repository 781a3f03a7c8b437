package serve

import (
	"context"
	"time"
)

// shutdownDelay is how long the answer to sandbox.shutdown has to leave.
const shutdownDelay = 100 * time.Millisecond

func (s *Server) shutdownSoon() {
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, shutdownDelay)
		defer cancel()
		<-ctx.Done()
		s.End("shutdown", "the driver requested it")
	}()
}
