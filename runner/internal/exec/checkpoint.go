package exec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/session"
	"hermes-exec/runner/internal/sessions"
	"hermes-exec/runner/internal/slots"
	"hermes-exec/runner/internal/wire"
)

// smallChange is the most that is copied if a freeze is possible too.
//
// Not the obvious code: see docs/why-not-obvious.md ("Copies of small changes").
var smallChange = layers.Bound{Entries: 2000, Bytes: 16 << 20}

const (
	// maxBusy is how many processes the error of a busy slot and the result of a checkpoint name.
	maxBusy = 16
	// maxName is how many bytes the name of a process has in the result of a checkpoint.
	maxName = 64
)

// What a checkpoint does with processes and connections of the slot.
const (
	keepProcesses   = "keep"
	refuseProcesses = "refuse"
	endProcesses    = "end"
)

type checkpointParams struct {
	Slot       string `json:"slot"`
	Checkpoint string `json:"checkpoint"`
	Processes  string `json:"processes"`
	Holds      string `json:"holds"` // "": HoldsRoot
	// Limit is how many bytes all layers of the sandbox may have; 0 for no limit.
	Limit int64 `json:"limit"`
}

// checkpointResult is the result of slot.checkpoint.
type checkpointResult struct {
	Layers   []string                  `json:"layers"`
	Sessions map[string]sessions.Place `json:"sessions"`
	Workdir  ipc.Bytes                 `json:"workdir"`
	Copied   bool                      `json:"copied"`
	Killed   *ipc.Receipt              `json:"killed,omitempty"`

	// Of a checkpoint that holds directories: these.
	Directories []ipc.Bytes `json:"directories,omitempty"`
	// What the slot had and the checkpoint does not hold.
	LeftOut []ipc.Bytes `json:"left_out,omitempty"`
}

// busyDetail describes the processes and calls that prevent a checkpoint.
type busyDetail struct {
	Calls     int           `json:"calls"`
	Processes []busyProcess `json:"processes"`
}

type busyProcess struct {
	PID  int         `json:"pid"`
	Argv []ipc.Bytes `json:"argv"`
}

func newBusyError(message string, calls int, processes []ipc.Process) error {
	detail := busyDetail{Calls: calls, Processes: []busyProcess{}}
	for _, p := range processes[:min(len(processes), maxBusy)] {
		argv := p.Argv
		if argv == nil {
			argv = []ipc.Bytes{}
		}
		detail.Processes = append(detail.Processes, busyProcess{PID: p.PID, Argv: argv})
	}
	return &wire.Error{Kind: "busy", Message: message, Detail: detail}
}

func (r *Runner) slotCheckpoint(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p checkpointParams
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	switch p.Processes {
	case keepProcesses, refuseProcesses, endProcesses:
	default:
		return nil, channel.BadRequest("processes %q is none of keep, refuse, end", p.Processes)
	}
	switch p.Holds = cmp.Or(p.Holds, directories.HoldsRoot); p.Holds {
	case directories.HoldsRoot, directories.HoldsDirectories:
	default:
		return nil, channel.BadRequest("holds %q is none of root, directories", p.Holds)
	}
	if !slots.IsID(p.Checkpoint) {
		return nil, channel.BadRequest("checkpoint %q is no id", p.Checkpoint)
	}
	if p.Limit < 0 {
		return nil, channel.BadRequest("limit %d is negative", p.Limit)
	}
	cp, isNew, err := r.checkpoints.begin(p.Checkpoint, p.Slot)
	if err != nil {
		return nil, err
	}
	if isNew {
		r.checkpoints.finish(cp, r.makeCheckpoint(c.Ctx, p, cp))
	}
	select {
	case <-cp.made:
		return cp.result, cp.err
	case <-c.Ctx.Done():
		return nil, channel.ErrCanceled
	}
}

// makeCheckpoint fills cp. After an error cp holds nothing.
func (r *Runner) makeCheckpoint(ctx context.Context, p checkpointParams, cp *checkpoint) error {
	layered, err := r.slots.Layers(p.Slot, p.Holds)
	if err != nil {
		return err
	}
	scope, err := r.Scope(ctx, p.Slot)
	if err != nil {
		return err
	}
	release, calls, connections, err := scope.Hold(ctx)
	if err != nil {
		return err
	}
	if calls > 0 {
		return newBusyError("calls of the slot are under way", calls, nil)
	}
	defer release()
	ctx, leave := scope.Join(ctx)
	defer leave()
	var list ipc.Transient
	if _, err := scope.Agent().Call(ctx, ipc.OpTransient, struct{}{}, &list); err != nil {
		return scope.Explain(err)
	}
	living := len(list.Processes) > 0
	if p.Processes == refuseProcesses && (living || connections > 0) {
		return newBusyError("processes or connections of the slot are open", 0, list.Processes)
	}
	saved, err := r.sessions.Save(scope)
	if err != nil {
		return err
	}
	workdir := scope.Agent().Workdir()
	cp.result = checkpointResult{Sessions: saved.Places(), Workdir: ipc.Bytes(workdir), Copied: true}
	cp.holds = p.Holds
	cp.result.LeftOut = describeTransient(list, connections)
	if d := layered.Directories(); d != nil {
		cp.result.Directories, cp.layout = d.Paths(), d.Layout()
	}
	ends, canFreeze := p.Processes == endProcesses, p.Holds == directories.HoldsRoot
	switch agent := scope.Agent(); {
	case ends && canFreeze:
		err = r.freeze(ctx, scope, layered, cp, p.Limit, living)
	case ends || living || connections > 0:
		err = pause(ctx, agent, func() (err error) {
			cp.stack, err = layered.Copy(ctx, agent, layers.Bound{}, p.Limit)
			if err == nil && ends {
				scope.EndConnections()
				cp.result.Killed, err = killAll(ctx, agent)
			}
			return err
		})
	default:
		bound := smallChange
		if len(list.Memory) > 0 || list.Objects > 0 { // which a freeze would end with the agent
			bound = layers.Bound{}
		}
		cp.stack, err = layered.Copy(ctx, agent, bound, p.Limit)
		if errors.Is(err, layers.ErrTooLarge) && canFreeze {
			err = r.freeze(ctx, scope, layered, cp, p.Limit, living)
		}
	}
	if err != nil {
		saved.Close()
		return errors.Join(explain(scope, err), cp.stack.Release())
	}
	cp.sessions, cp.result.Layers = saved, cp.stack.IDs()
	if !canFreeze {
		for _, entry := range cp.stack[0].LeftOut {
			cp.result.LeftOut = append(cp.result.LeftOut, ipc.Bytes(entry))
		}
	}
	return nil
}

// describeTransient returns what a slot has that no checkpoint holds, one text for each kind.
func describeTransient(state ipc.Transient, connections int) (texts []ipc.Bytes) {
	add := func(format string, args ...any) { texts = append(texts, ipc.Bytes(fmt.Sprintf(format, args...))) }
	if n := len(state.Processes); n > 0 {
		var names []string
		for _, p := range state.Processes[:min(n, maxBusy)] {
			if len(p.Argv) > 0 { // no arguments, which may have secrets
				name := path.Base(string(p.Argv[0]))
				names = append(names, name[:min(len(name), maxName)])
			}
		}
		add("processes with their memory, connections and deleted files: %d (%s)", n, strings.Join(names, ", "))
	}
	if connections > 0 {
		add("connections of the driver: %d", connections)
	}
	for _, dir := range state.Memory {
		add("files in memory: %s", dir)
	}
	if state.Objects > 0 {
		add("System V objects: %d", state.Objects)
	}
	return texts
}

// newFullError returns the error for a store that has reached its limit.
func newFullError(err error) error {
	full := new(layers.FullError)
	errors.As(err, &full)
	return &wire.Error{Kind: "store_full", Message: err.Error(), Path: wire.Bytes(full.Dir)}
}

// killAll ends all processes of a slot, and returns a receipt if there were any.
func killAll(ctx context.Context, agent *link.Agent) (*ipc.Receipt, error) {
	var killed ipc.Receipt
	if _, err := agent.Call(context.WithoutCancel(ctx), ipc.OpKillAll, struct{}{}, &killed); err != nil {
		return nil, err
	}
	if killed.Left > 0 {
		return nil, &ipc.Error{Kind: "unclean", Message: fmt.Sprintf("%d processes of the slot are left", killed.Left)}
	}
	if killed.Found == 0 {
		return nil, nil
	}
	return &killed, nil
}

// explain returns the error of a checkpoint that could not be made.
func explain(scope *command.Scope, err error) error {
	if full := new(layers.FullError); errors.As(err, &full) {
		return newFullError(err)
	}
	return scope.Explain(err)
}

// pause stops the processes of a slot while do runs.
func pause(ctx context.Context, agent *link.Agent, do func() error) error {
	whole := context.WithoutCancel(ctx) // the agent does not stop halfway: without Resume they would stay stopped
	if _, err := agent.Call(whole, ipc.OpPause, struct{}{}, nil); err != nil {
		return err
	}
	err := do()
	_, resumed := agent.Call(whole, ipc.OpResume, struct{}{}, nil)
	return cmp.Or(err, resumed)
}

// freeze ends all processes and connections and makes the slot's changes a layer of the checkpoint. A
// slot that is living has processes.
func (r *Runner) freeze(ctx context.Context, scope *command.Scope, layered *slots.SlotLayers, cp *checkpoint,
	limit int64, living bool) (err error) {
	agent := scope.Agent()
	var prepared *slots.Freeze
	prepare := func() (err error) {
		prepared, err = layered.PrepareFreeze(ctx, agent, limit)
		return err
	}
	if living && limit > 0 { // the changes are measured
		err = pause(ctx, agent, prepare)
	} else {
		err = prepare()
	}
	if err != nil {
		if prepared != nil {
			err = errors.Join(err, prepared.Discard())
		}
		return err
	}
	scope.EndConnections()
	var killed ipc.Receipt
	// Before the agent ends, so that it reports how each command has ended.
	if _, err := agent.Call(context.WithoutCancel(ctx), ipc.OpKillAll, struct{}{}, &killed); err != nil {
		return errors.Join(err, prepared.Discard())
	}
	r.processes.CloseFiles(scope)
	frozen, err := prepared.Run(ctx, string(cp.result.Workdir), scope.SetAgent)
	killed.Add(frozen.Killed)
	if err != nil {
		if agent.IsStopRequested() { // nothing that began before can continue
			endScope(r, scope, channel.AsWire(err))
		}
		return err
	}
	cp.stack, cp.result.Copied = frozen.Stack, frozen.Copied
	if killed.Found > 0 {
		cp.result.Killed = &killed
	}
	return nil
}

// restoreResult is the result of slot.restore.
type restoreResult struct {
	slots.ResetResult
	Sessions map[string]sessions.Place `json:"sessions"`
	Workdir  ipc.Bytes                 `json:"workdir"`
}

func (r *Runner) slotRestore(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Slot       string  `json:"slot"`
		Checkpoint *string `json:"checkpoint"`
		Begin      bool    `json:"begin"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	cp, err := r.checkpoints.use(p.Slot, p.Checkpoint)
	if err != nil {
		return nil, err
	}
	defer r.release(cp)
	layered, err := r.slots.Layers(p.Slot, cp.holds)
	if err != nil {
		return nil, err
	}
	var move session.Move
	if d := layered.Directories(); d != nil {
		layout := d.Layout()
		if err := cp.layout.CheckFits(layout); err != nil {
			return nil, err
		}
		move = session.Move{From: string(cp.layout.Dir), To: string(layout.Dir)}
	}
	stack, err := cp.startStack(c.Ctx)
	if err != nil {
		return nil, err
	}
	done, err := RenewSlot(r, p.Slot, c.ID)
	if err != nil {
		return nil, errors.Join(err, stack.Release())
	}
	defer done()
	workdir := move.Text(string(cp.result.Workdir))
	var agent *link.Agent
	adopt := func(renewed *link.Agent) {
		agent = renewed
		agent.SetWorkdir(workdir)
		if p.Begin {
			r.release(r.checkpoints.setBegin(p.Slot, cp))
		}
	}
	result := restoreResult{Sessions: map[string]sessions.Place{}, Workdir: ipc.Bytes(workdir)}
	// A restore that has begun is finished, even if the call is cancelled.
	result.ResetResult, err = layered.Restore(r.ctx, stack, adopt)
	if err != nil || !result.Clean {
		return result, err
	}
	scope, err := r.Scope(r.ctx, p.Slot)
	if err != nil {
		return nil, err
	}
	if scope.Agent() != agent {
		return nil, command.ErrSlotClosed
	}
	if result.Sessions, err = r.sessions.Continue(scope, cp.sessions, move, c.ID); err != nil {
		return nil, err
	}
	return result, nil
}

// ForgetBegin lets a slot begin with the image again.
func (r *Runner) ForgetBegin(slot string) { r.release(r.checkpoints.setBegin(slot, nil)) }

func (r *Runner) checkpointDrop(c *channel.Conversation, params json.RawMessage) (any, error) {
	var p struct {
		Checkpoint string `json:"checkpoint"`
	}
	if err := channel.Decode(params, &p); err != nil {
		return nil, err
	}
	if err := r.arrivals.drop(p.Checkpoint); err != nil {
		return nil, err
	}
	if r.checkpoints.dropUnknown(p.Checkpoint) {
		return nil, nil
	}
	cp, err := r.checkpoints.find(c, params)
	if err != nil || cp == nil {
		return nil, err
	}
	return nil, r.checkpoints.drop(cp)
}

// layerFacts describe a layer to the driver.
type layerFacts struct {
	Layer   string `json:"layer"`
	Entries int    `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

func (r *Runner) checkpointInfo(c *channel.Conversation, params json.RawMessage) (any, error) {
	cp, err := holdCheckpoint(r, c, params)
	if err != nil {
		return nil, err
	}
	defer r.release(cp)
	facts := []layerFacts{}
	for _, layer := range cp.stack {
		size, err := layer.Size()
		if err != nil {
			return nil, err
		}
		facts = append(facts, layerFacts{Layer: layer.ID, Entries: size.Entries, Bytes: size.Bytes})
	}
	return map[string]any{"layers": facts, "sessions": cp.result.Sessions, "workdir": cp.result.Workdir}, nil
}

// release ends a use of a checkpoint, which may be nil.
func (r *Runner) release(cp *checkpoint) {
	if err := r.checkpoints.release(cp); err != nil {
		r.log.Printf("checkpoint: %v", err)
	}
}
