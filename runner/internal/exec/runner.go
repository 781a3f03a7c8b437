// Package exec runs commands and processes of slots for the driver: start,
// output, input, time limits, sessions and results.
package exec

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sync"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/output"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

// Runner runs what is asked for in the slots of one box.
type Runner struct {
	ctx     context.Context // ends with the server
	log     *log.Logger
	slots   *slots.Manager
	devNull *os.File
	// Memory is what is kept of output, and under way, of all slots.
	Memory  *budget.Budget
	history budget.History

	mu        sync.Mutex
	states    map[string]*Slot
	processes map[string]*process
	sessions  map[string]*shellSession

	exitsMu sync.Mutex
	exits   map[uint64]chan<- ipc.Exit // where the exit of a command is waited for, by token
}

// New makes a Runner for these slots, and subscribes to the exits of commands
// and agents.
func New(ctx context.Context, manager *slots.Manager, memory *budget.Budget, log *log.Logger) (*Runner, error) {
	devNull, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("standard input of commands: %w", err)
	}
	r := &Runner{
		ctx: ctx, log: log, slots: manager, devNull: devNull, Memory: memory, states: map[string]*Slot{},
		processes: map[string]*process{},
		sessions:  map[string]*shellSession{}, exits: map[uint64]chan<- ipc.Exit{},
	}
	memory.OnPressure(r.freeMemory)
	manager.OnExit(func(_ string, e ipc.Exit) { r.exited(e) })
	manager.OnDeath(func(slot string, why *ipc.Error) { r.EndSlot(slot, channel.AsWire(why)) })
	return r, nil
}

// Method carries out one request. The result is encoded as JSON; nil is {}.
type Method func(r *Runner, c *channel.Conversation, params json.RawMessage) (any, error)

// Methods are those of docs/protocol.md that are carried out here.
var Methods = map[string]Method{
	"exec.run": (*Runner).execRun, "session.open": (*Runner).sessionOpen, "session.close": (*Runner).sessionClose,
	"proc.spawn": (*Runner).procSpawn, "proc.list": (*Runner).procList, "proc.wait": procMethod((*process).wait),
	"proc.read": procMethod((*process).read), "proc.follow": procMethod((*process).follow),
	"proc.write":       procMethod((*process).write),
	"proc.close_stdin": procMethod((*process).closeStdin), "proc.signal": procMethod((*process).signal),
	"proc.kill": procMethod((*process).kill), "proc.resize": procMethod((*process).resize),
	"slot.processes": (*Runner).slotProcesses, "slot.view": (*Runner).slotView,
}

// Slot gives the state of a slot since its last reset, and its running agent.
func (r *Runner) Slot(ctx context.Context, id string) (*Slot, *slots.Agent, error) {
	if id == "" {
		return nil, nil, channel.BadRequest("slot is missing")
	}
	agent, err := r.slots.Agent(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.states[id]
	if state == nil {
		state = &Slot{id: id, log: r.log, leftover: map[*os.File]struct{}{}}
		state.ctx, state.cancel = context.WithCancelCause(r.ctx)
		state.spills = &output.Spills{Open: state.openSpill, Remove: state.removeSpill}
		r.states[id] = state
	}
	state.mu.Lock()
	state.agent = agent
	state.mu.Unlock()
	return state, agent, nil
}

// namedSlot is Slot for the one that a request names.
func (r *Runner) namedSlot(c *channel.Conversation, params json.RawMessage) (*Slot, *slots.Agent, error) {
	var p struct {
		Slot string `json:"slot"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, nil, err
	}
	return r.Slot(c.Ctx, p.Slot)
}

// slotView tells what the slot's commands and processes print from now on,
// until it is called off or the slot is reset.
func (r *Runner) slotView(c *channel.Conversation, params json.RawMessage) (any, error) {
	slot, _, err := r.namedSlot(c, params)
	if err != nil {
		return nil, err
	}
	ctx, leave := slot.Join(c.Ctx)
	defer leave()
	slot.views.Show(ctx, c, r.Memory)
	return nil, context.Cause(ctx)
}

// EndSlot ends the state of a slot, as at a reset: calls under way fail with why.
func (r *Runner) EndSlot(id string, why *wire.Error) {
	r.mu.Lock()
	state := r.states[id]
	delete(r.states, id)
	for key, p := range r.processes {
		if p.slot == state {
			delete(r.processes, key)
		}
	}
	for key, x := range r.sessions {
		if x.slot == state {
			x.end()
			delete(r.sessions, key)
		}
	}
	r.mu.Unlock()
	if state != nil {
		r.history.Forget(state)
		state.end(why)
	}
}
