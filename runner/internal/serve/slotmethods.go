package serve

import (
	"context"
	"time"
)

// lastWords is how long the answer to sandbox.shutdown has to leave.
const lastWords = 100 * time.Millisecond

func (s *Server) shutdownSoon() {
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, lastWords)
		defer cancel()
		<-ctx.Done()
		s.End("shutdown", "the driver asked for it")
	}()
}
