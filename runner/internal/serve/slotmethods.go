package serve

import (
	"context"
	"encoding/json"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
)

func tidy(r ipc.Receipt) ipc.Receipt {
	if r.Handles == nil {
		r.Handles = []string{}
	}
	return r
}

// processInfo is a living process of a slot as the driver sees it.
type processInfo struct {
	PID       int         `json:"pid"`
	Argv      []ipc.Bytes `json:"argv"`
	StartedAt float64     `json:"started_at"`
	RSS       int64       `json:"rss_bytes"`
	RequestID *uint64     `json:"request_id"`
	State     string      `json:"state"`
}

func (s *Server) slotProcesses(c *channel.Conversation, params json.RawMessage) (any, error) {
	slot, agent, err := s.namedSlot(c, params)
	if err != nil {
		return nil, err
	}
	ctx, leave := slot.join(c.Ctx)
	defer leave()
	var got ipc.Processes
	if _, err := agent.Call(ctx, ipc.OpProcesses, struct{}{}, &got); err != nil {
		return nil, s.startError(slot, err)
	}
	list := make([]processInfo, 0, len(got.Processes))
	for _, p := range got.Processes {
		info := processInfo{PID: p.PID, Argv: p.Argv, StartedAt: p.StartedAt, RSS: p.RSS, State: p.State}
		if info.Argv == nil {
			info.Argv = []ipc.Bytes{}
		}
		if p.Token != 0 {
			info.RequestID = &p.Token
		}
		list = append(list, info)
	}
	return map[string]any{"processes": list}, nil
}

// lastWords is how long the answer to box.shutdown has to leave.
const lastWords = 100 * time.Millisecond

func (s *Server) shutdownSoon() {
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, lastWords)
		defer cancel()
		<-ctx.Done()
		s.End("shutdown", "the driver asked for it")
	}()
}
