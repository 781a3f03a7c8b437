package exec

import (
	"encoding/json"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
)

// processInfo is a living process of a slot, as the driver gets it.
type processInfo struct {
	PID       int         `json:"pid"`
	Argv      []ipc.Bytes `json:"argv"`
	StartedAt float64     `json:"started_at"`
	RSS       int64       `json:"rss_bytes"`
	RequestID *uint64     `json:"request_id"`
	State     string      `json:"state"`
}

func (r *Runner) slotProcesses(c *channel.Conversation, params json.RawMessage) (any, error) {
	scope, err := r.decodeScope(c, params)
	if err != nil {
		return nil, err
	}
	ctx, leave := scope.Join(c.Ctx)
	defer leave()
	var got ipc.Processes
	if _, err := scope.Agent().Call(ctx, ipc.OpProcesses, struct{}{}, &got); err != nil {
		return nil, scope.Explain(err)
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
