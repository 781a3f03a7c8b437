package sessions

import (
	"hermes-exec/runner/internal/channel"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/session"
)

// State is a saved session in the form of docs/protocol.md.
type State struct {
	session.Portable
	Entered bool        `json:"entered"`
	SlotEnv []ipc.Bytes `json:"slot_env,omitempty"` // of the slot of the checkpoint
}

// Export returns the states; without variables, with the directories, functions and options alone.
func (s Saved) Export(variables bool) map[string]State {
	states := map[string]State{}
	for id, saved := range s {
		state := State{Portable: saved.state.Export(variables), Entered: saved.entered}
		if variables {
			state.SlotEnv = session.ToBytes(saved.env)
		}
		states[id] = state
	}
	return states
}

// Import returns the sessions of a checkpoint of another sandbox.
func (r *Registry) Import(states map[string]State) (Saved, error) {
	saved := Saved{}
	for id, state := range states {
		imported, size, err := state.Import()
		if err != nil {
			saved.Close()
			return nil, channel.BadRequest("session %q: %v", id, err)
		}
		s := &savedSession{state: imported, entered: state.Entered, memory: r.memory.Open()}
		for _, entry := range state.SlotEnv {
			s.env, size = append(s.env, string(entry)), size+int64(len(entry))
		}
		saved[id] = s
		if !s.memory.Reserve(size) {
			saved.Close()
			return nil, errNoMemory
		}
	}
	return saved, nil
}
