package exec

import (
	"context"
	"encoding/json"
	"log"
	"sync"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/ordered"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/process"
	"hermes-exec/runner/internal/sessions"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

// Runner runs commands in the slots of one sandbox.
type Runner struct {
	ctx     context.Context // ends with the server
	log     *log.Logger
	slots   *slots.Manager
	starter *command.Starter
	// Memory is the budget for output, kept and under way, of all slots.
	Memory    *budget.Budget
	processes *process.Registry
	sessions  *sessions.Registry

	checkpoints *checkpoints
	arrivals    *arrivals
	renewals    ordered.Requests // by slot

	mu     sync.Mutex
	scopes map[string]*command.Scope
}

// New makes a Runner for these slots, and subscribes to the exits of commands and agents.
func New(ctx context.Context, manager *slots.Manager, memory *budget.Budget, log *log.Logger) (*Runner, error) {
	starter, err := command.NewStarter()
	if err != nil {
		return nil, err
	}
	r := &Runner{
		ctx: ctx, log: log, slots: manager, starter: starter, Memory: memory,
		processes: process.NewRegistry(memory, log), sessions: sessions.NewRegistry(memory),
		scopes: map[string]*command.Scope{}, checkpoints: newCheckpoints(),
		arrivals: newArrivals(),
	}
	memory.OnPressure(func(need int64) int64 { return r.processes.FreeMemory(need, r.countScopes()) })
	manager.OnExit(func(_ string, e ipc.Exit) { starter.DeliverExit(e) })
	manager.OnDeath(func(slot string, why *ipc.Error) { r.endSlot(slot, channel.AsWire(why)) })
	return r, nil
}

// Method carries out one request. The result is encoded as JSON; nil is {}.
type Method func(r *Runner, c *channel.Conversation, params json.RawMessage) (any, error)

// Methods are the methods of docs/protocol.md that this package implements.
var Methods = map[string]Method{
	"exec.run": (*Runner).execRun, "session.open": (*Runner).sessionOpen, "session.close": (*Runner).sessionClose,
	"proc.spawn": (*Runner).procSpawn, "proc.list": (*Runner).procList,
	"slot.processes": (*Runner).slotProcesses, "slot.view": (*Runner).slotView,
	"slot.checkpoint": (*Runner).slotCheckpoint, "slot.restore": (*Runner).slotRestore,
	"checkpoint.drop": (*Runner).checkpointDrop, "checkpoint.info": (*Runner).checkpointInfo,
	"checkpoint.get": checkpointGet, "checkpoint.put": checkpointPut,
	"layer.get": layerGet, "layer.put": layerPut,
}

func init() {
	for name, carry := range process.Methods {
		Methods[name] = func(r *Runner, c *channel.Conversation, params json.RawMessage) (any, error) {
			return carry(r.processes, c, params)
		}
	}
}

// Scope returns the scope of a slot since its last reset.
func (r *Runner) Scope(ctx context.Context, id string) (*command.Scope, error) {
	if id == "" {
		return nil, channel.BadRequest("slot is missing")
	}
	agent, err := r.slots.Agent(ctx, id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	scope := r.scopes[id]
	if scope == nil || scope.Agent() != agent {
		scope = command.NewScope(r.ctx, id, agent, r.log)
		r.scopes[id] = scope
	}
	return scope, nil
}

// Use returns the scope of a slot for a call that can change the slot, and waits for a checkpoint in
// progress. leave must follow.
func (r *Runner) Use(ctx context.Context, id string) (scope *command.Scope, leave func(), err error) {
	if scope, err = r.Scope(ctx, id); err != nil {
		return nil, nil, err
	}
	if leave, err = scope.Enter(ctx); err != nil {
		return nil, nil, err
	}
	return scope, leave, nil
}

func (r *Runner) countScopes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.scopes)
}

// decodeScope returns the scope of the slot that a request names.
func (r *Runner) decodeScope(c *channel.Conversation, params json.RawMessage) (*command.Scope, error) {
	var p struct {
		Slot string `json:"slot"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	return r.Scope(c.Ctx, p.Slot)
}

// RenewSlot ends the scope of a slot for the request with a number, which resets, restores or destroys
// the slot next, after those that are under way, and then calls done. The driver numbers its requests in
// order: if one with a higher number has begun, this one was given up, the slot may have another holder,
// and the error is slot_closed.
func RenewSlot(r *Runner, id string, request uint64) (done func(), err error) {
	if done = r.renewals.Begin(id, request); done == nil {
		return nil, &wire.Error{Kind: "slot_closed", Message: "a later request has reset the slot"}
	}
	r.endSlot(id, command.ErrSlotClosed)
	return done, nil
}

// endSlot ends the scope of a slot, if it has one. Calls under way fail with why.
func (r *Runner) endSlot(id string, why *wire.Error) {
	r.mu.Lock()
	scope := r.scopes[id]
	delete(r.scopes, id)
	r.mu.Unlock()
	if scope != nil {
		endScope(r, scope, why)
	}
}

func endScope(r *Runner, scope *command.Scope, why *wire.Error) {
	scope.End(why) // first, so that calls which begin meanwhile see the end
	r.processes.EndSlot(scope)
	r.sessions.EndSlot(scope)
}

// slotView sends the output of the slot's commands and processes until it is cancelled or the slot
// is reset.
func (r *Runner) slotView(c *channel.Conversation, params json.RawMessage) (any, error) {
	scope, err := r.decodeScope(c, params)
	if err != nil {
		return nil, err
	}
	ctx, leave := scope.Join(c.Ctx)
	defer leave()
	scope.Views.Show(ctx, c, r.Memory)
	return nil, context.Cause(ctx)
}

func (r *Runner) sessionOpen(c *channel.Conversation, params json.RawMessage) (any, error) {
	scope, err := r.decodeScope(c, params)
	if err != nil {
		return nil, err
	}
	leave, err := scope.Enter(c.Ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return r.sessions.Open(c, scope, params)
}

func (r *Runner) sessionClose(_ *channel.Conversation, params json.RawMessage) (any, error) {
	return nil, r.sessions.Close(params)
}

func (r *Runner) procSpawn(c *channel.Conversation, params json.RawMessage) (any, error) {
	p, scope, leave, err := r.decodeCommand(c, params)
	if err != nil {
		return nil, err
	}
	defer leave()
	if p.TimeoutS != nil || p.Stream || p.Peek {
		return nil, channel.BadRequest("proc.spawn takes neither timeout_s nor stream nor peek")
	}
	l, missing, err := r.launch(c, scope, p)
	if err != nil {
		return nil, err
	}
	defer pipe.CloseFiles(l.Extra)
	if missing != nil {
		return r.processes.Adopt(command.NewUnstarted(scope, c.ID, *missing), p), nil
	}
	cmd, err := r.starter.Start(scope, l)
	if err != nil {
		return nil, err
	}
	return r.processes.Adopt(cmd, p), nil
}

// launch returns the launch for a command that leaves the state of its session, if it has one,
// alone.
func (r *Runner) launch(c *channel.Conversation, scope *command.Scope,
	p *command.Params) (command.Launch, *ipc.SpawnResult, error) {
	if p.Session == "" {
		return p.Launch(scope, c.ID)
	}
	session, err := r.sessions.Find(p.Session, scope)
	if err != nil {
		return command.Launch{}, nil, err
	}
	l, err := session.Launch(c.ID, p)
	return l, nil, err
}

func (r *Runner) procList(c *channel.Conversation, params json.RawMessage) (any, error) {
	scope, err := r.decodeScope(c, params)
	if err != nil {
		return nil, err
	}
	return r.processes.List(scope), nil
}
