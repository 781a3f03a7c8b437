package serve

import (
	"context"
	"encoding/json"

	"hermes-exec/runner/internal/slots"
)

// Managed gives the slots of a manager.
func Managed(m *slots.Manager) Slots { return managed{m} }

type managed struct{ *slots.Manager }

func (m managed) Create(ctx context.Context, params json.RawMessage) (any, error) {
	var p slots.CreateParams
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	if err := checkEnv(p.Env); err != nil {
		return nil, err
	}
	return m.Manager.Create(ctx, p)
}

func (m managed) Agent(ctx context.Context, slot string) (*Agent, error) {
	h, err := m.Manager.Agent(ctx, slot)
	if err != nil {
		return nil, err
	}
	a := &Agent{Call: h.Call, Env: h.Env, Workspace: string(h.Facts.Workspace), Shells: h.Facts.Shells, FIFO: h.FIFO}
	if limit := h.OpenFiles(); limit != nil {
		a.OpenFiles = int(*limit)
	}
	if h.Facts.Shell != nil {
		a.Shell = h.Facts.Shells[*h.Facts.Shell]
	}
	return a, nil
}

func (m managed) Reset(ctx context.Context, slot string) (any, error) {
	return m.Manager.Reset(ctx, slot)
}
