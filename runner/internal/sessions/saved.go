package sessions

import (
	"maps"
	"slices"
	"strconv"

	"hermes-exec/runner/internal/budget"
	"hermes-exec/runner/internal/command"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/session"
)

// Saved is the sessions of a slot at a checkpoint, by id.
type Saved map[string]*savedSession

type savedSession struct {
	state   *session.State
	env     []string // the slot's environment
	entered bool
	memory  *budget.Account
}

// Place is a session with its directory, as the driver gets it.
type Place struct {
	Session string    `json:"session,omitempty"`
	Cwd     ipc.Bytes `json:"cwd"`
}

var errNoMemory = &ipc.Error{Kind: "exhausted",
	Message: "the runner has no memory left for the states of the sessions"}

// Save returns the states of a scope's sessions. No command of them may run.
func (r *Registry) Save(scope *command.Scope) (Saved, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	saved := Saved{}
	for id, x := range r.all {
		if x.scope != scope {
			continue
		}
		x.mu.Lock()
		s := &savedSession{state: x.state.Clone(), env: scope.Agent().Env, entered: x.entered,
			memory: r.memory.Open()}
		size := x.kept.Balance()
		x.mu.Unlock()
		saved[id] = s
		if !s.memory.Reserve(size) {
			saved.Close()
			return nil, errNoMemory
		}
	}
	return saved, nil
}

// Close gives up the states.
func (s Saved) Close() {
	for _, session := range s {
		session.memory.Close()
	}
}

// Places returns the directories of the sessions.
func (s Saved) Places() map[string]Place {
	places := map[string]Place{}
	for id, session := range s {
		places[id] = Place{Cwd: ipc.Bytes(session.state.Cwd())}
	}
	return places
}

// Continue opens sessions of a scope in the saved states, for the request with an id. It returns
// them by the ids of the saved ones. Variables of the slot of the checkpoint, such as its secrets,
// become those of the scope's slot, and paths in the states move to that slot's directories.
func (r *Registry) Continue(scope *command.Scope, saved Saved, move session.Move, request uint64) (map[string]Place,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cause := scope.Err(); cause != nil {
		return nil, cause
	}
	places := map[string]Place{}
	for n, old := range slices.Sorted(maps.Keys(saved)) {
		s := saved[old]
		x := &Session{id: "s" + strconv.FormatUint(request, 10) + "-" + strconv.Itoa(n+1), scope: scope,
			memory: r.memory, free: make(chan struct{}, 1), state: s.state.Clone(), entered: s.entered,
			kept: r.memory.Open()}
		x.state.ReplaceEnvironment(s.env, scope.Agent().Env)
		x.state.ReplacePaths(move)
		x.kept.Force(s.memory.Balance())
		x.free <- struct{}{}
		r.all[x.id] = x
		places[old] = Place{Session: x.id, Cwd: ipc.Bytes(x.state.Cwd())}
	}
	return places, nil
}
