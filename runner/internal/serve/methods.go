package serve

import (
	"encoding/json"
	"time"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/exec"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/slots"
)

// method carries out one request. The result is encoded as JSON; nil is {}.
type method func(s *Server, c *channel.Conversation, params json.RawMessage) (any, error)

var methods = map[string]method{}

func init() {
	for name, m := range map[string]method{
		"slot.create": (*Server).slotCreate, "slot.reset": (*Server).slotReset, "slot.destroy": (*Server).slotDestroy,
		"slot.kill_all": (*Server).slotKillAll, "slot.disk": (*Server).slotDisk, "net.connect": (*Server).netConnect,
		"net.listen": (*Server).netListen, "net.accept": (*Server).netAccept,
		"sandbox.info": (*Server).sandboxInfo, "sandbox.shutdown": (*Server).sandboxShutdown,
	} {
		methods[name] = m
	}
	for name, carry := range fileMethods {
		methods[name] = fileMethod(name, carry)
	}
	for name, carry := range exec.Methods {
		methods[name] = func(s *Server, c *channel.Conversation, params json.RawMessage) (any, error) {
			return carry(s.exec, c, params)
		}
	}
}

// shutdownDelay is how long the answer to sandbox.shutdown has to leave.
const shutdownDelay = 100 * time.Millisecond

type slotParams struct {
	Slot string `json:"slot"`
}

func (s *Server) slotCreate(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p slots.CreateParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if p.Slot == "" {
		return nil, channel.BadRequest("slot is missing")
	}
	created, err := s.slots.Create(c.Ctx, p)
	if err == nil && p.Level == isolation.Exclusive && !p.Trial {
		// The one slot of a sandbox is used soon. If its agent cannot be started, its first use
		// returns the error.
		go func() { _, _ = s.slots.Agent(s.ctx, p.Slot) }()
	}
	return created, err
}

func (s *Server) slotReset(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p slotParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	done, err := exec.RenewSlot(s.exec, p.Slot, c.ID)
	if err != nil {
		return nil, err
	}
	defer done()
	// A reset that has begun is finished, even if the call is cancelled.
	result, err := s.slots.Reset(s.ctx, p.Slot)
	s.exec.ForgetBegin(p.Slot) // afterwards: a restore may have been under way
	return result, err
}

func (s *Server) slotDestroy(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p slotParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	done, err := exec.RenewSlot(s.exec, p.Slot, c.ID)
	if err != nil {
		return nil, err
	}
	defer done()
	receipt, err := s.slots.Destroy(s.ctx, p.Slot)
	s.exec.ForgetBegin(p.Slot)
	return command.KillResult(receipt), err
}

func (s *Server) slotKillAll(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p slotParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	receipt, err := s.slots.KillAll(s.ctx, p.Slot)
	return command.KillResult(receipt), err
}

func (s *Server) slotDisk(_ *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		slotParams
		Refused  bool `json:"refused"`
		Prepared bool `json:"prepared"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	return s.slots.Disk(s.ctx, p.Slot, p.Refused, p.Prepared)
}

func (s *Server) sandboxInfo(*channel.Conversation, json.RawMessage) (any, error) {
	return s.Facts(), nil
}

func (s *Server) sandboxShutdown(*channel.Conversation, json.RawMessage) (any, error) {
	go func() {
		time.Sleep(shutdownDelay)
		s.End("shutdown", "the driver requested it")
	}()
	return nil, nil
}
