package session

import (
	"errors"
	"fmt"
	"strings"

	"hermes-exec/runner/internal/ipc"
)

// Portable is a State in the form of docs/protocol.md, which another runner can continue.
type Portable struct {
	Cwd   ipc.Bytes      `json:"cwd"`
	Shell string         `json:"shell"`
	Path  string         `json:"path"`
	Saved *PortableSaved `json:"saved,omitempty"`
	Env   []ipc.Bytes    `json:"env,omitempty"`
}

// PortableSaved is the state that a shell wrote.
type PortableSaved struct {
	Before        ipc.Bytes            `json:"before"`
	After         ipc.Bytes            `json:"after"`
	Options       ipc.Bytes            `json:"options"`
	Posix         bool                 `json:"posix"`
	Variables     map[string]ipc.Bytes `json:"variables,omitempty"`
	PosixVariable ipc.Bytes            `json:"posix_variable,omitempty"`
}

// Export returns the state; without variables, it has only the directory, the functions and the
// options.
func (s *State) Export(variables bool) Portable {
	p := Portable{Cwd: ipc.Bytes(s.cwd), Shell: s.shell.Name, Path: s.shell.Path}
	if variables {
		p.Env = ToBytes(s.env)
	}
	if s.saved == nil {
		return p
	}
	p.Saved = &PortableSaved{Before: ipc.Bytes(s.saved.before), After: ipc.Bytes(s.saved.after),
		Options: ipc.Bytes(s.saved.options), Posix: s.saved.posix}
	if variables {
		p.Saved.Variables, p.Saved.PosixVariable = map[string]ipc.Bytes{}, ipc.Bytes(s.saved.posixVariable)
		for name, commands := range s.saved.vars {
			p.Saved.Variables[name] = ipc.Bytes(commands)
		}
	}
	return p
}

// Import returns the state, and how much memory its text takes.
func (p *Portable) Import() (*State, int64, error) {
	if !strings.HasPrefix(string(p.Cwd), "/") {
		return nil, 0, fmt.Errorf("the session's directory %q is not absolute", p.Cwd)
	}
	if p.Shell == "" || !strings.HasPrefix(p.Path, "/") || strings.ContainsRune(p.Path, 0) {
		return nil, 0, fmt.Errorf("the session's shell %q at %q is invalid", p.Shell, p.Path)
	}
	size := int64(len(p.Cwd))
	env := make([]string, len(p.Env))
	for i, entry := range p.Env {
		if !strings.Contains(string(entry), "=") {
			return nil, 0, errors.New("an entry of the session's environment has no value")
		}
		env[i], size = string(entry), size+int64(len(entry))
	}
	s := Open(Shell{Name: p.Shell, Path: p.Path}, string(p.Cwd), env)
	if p.Saved == nil {
		return s, size, nil
	}
	s.saved = &savedState{vars: map[string]string{}, before: string(p.Saved.Before), after: string(p.Saved.After),
		options: string(p.Saved.Options), posix: p.Saved.Posix, posixVariable: string(p.Saved.PosixVariable)}
	size += int64(len(p.Saved.Before) + len(p.Saved.After) + len(p.Saved.Options) + len(p.Saved.PosixVariable))
	for name, commands := range p.Saved.Variables {
		if !identifier(name) {
			return nil, 0, fmt.Errorf("%q is no name of a variable", name)
		}
		s.saved.vars[name], size = string(commands), size+int64(len(name)+len(commands))
	}
	return s, size, nil
}

// ToBytes returns entries in the form of the protocol.
func ToBytes(entries []string) []ipc.Bytes {
	out := make([]ipc.Bytes, len(entries))
	for i, entry := range entries {
		out[i] = ipc.Bytes(entry)
	}
	return out
}
