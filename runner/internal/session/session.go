package session

import (
	"bytes"
	"path"
	"slices"
	"strings"
)

// maxArgument is the longest text that is passed as an argument.
const maxArgument = 64 << 10

// FirstFD is the descriptor of the first file of a Program.
const FirstFD = 3

// Shell is the interpreter of a session.
type Shell struct {
	Name string // bash, sh, dash, ash, busybox
	Path string
}

// BestShell returns the shell that keeps most state. A known shell comes before "sh", which may be
// any shell.
func BestShell(shells map[string]string, fallback string) (Shell, bool) {
	for _, name := range []string{"bash", "dash", "busybox", "ash", "sh"} {
		if where := shells[name]; where != "" {
			return Shell{Name: name, Path: where}, true
		}
	}
	if fallback != "" {
		return Shell{Name: path.Base(fallback), Path: fallback}, true
	}
	return Shell{}, false
}

// Keeps lists the state that lasts from one command to the next.
func (s Shell) Keeps() []string { return s.family().keeps() }

func (s Shell) family() shellFamily {
	if s.Name == "bash" {
		return bash{}
	}
	return posix{}
}

// Program is one command of a session, ready to be started.
type Program struct {
	Argv  []string
	Env   []string // complete, KEY=VALUE
	Cwd   string
	Files [][]byte // inherited from descriptor FirstFD on
}

// Call holds the inputs of one command.
type Call struct {
	Env map[string]string // for this command only
	Cwd string            // absolute; "" is the session's directory
	// Save is the path of the FIFO for the state after the command. Without it the state is not
	// saved.
	Save string
	// FDPath returns the path under which a shell can open its own descriptor.
	FDPath func(fd int) string
}

// State is one session. Its methods are not for concurrent use.
type State struct {
	shell  Shell
	family shellFamily
	cwd    string
	env    []string // environment until the first state was saved
	odd    []string // entries that no shell variable can hold
	saved  *savedState
}

// savedState is the state that a shell wrote, in the form that the next shell reads.
type savedState struct {
	vars   map[string]string // commands that set each variable
	before string            // read before the variables
	after  string            // read after them
	// options is set last, so that no earlier step is traced.
	options string
	// POSIX mode of bash, and the command that sets its variable.
	posix         bool
	posixVariable string
}

// shellFamily is a family of shells.
type shellFamily interface {
	keeps() []string
	// isExcluded reports whether a new shell must not get a variable in its environment.
	isExcluded(name string) bool
	// isVariable reports whether the state holds a variable of this name.
	isVariable(s *State, name string) bool
	// command makes a shell read the file program and then run text.
	command(s *State, program, text string) (argv, env []string)
	program(s *State, call *Call) string
	// state returns the text that the program reads if there is a saved state.
	state(saved *savedState, call *Call) string
	// decode parses a record. part is true if the state is incomplete: the shell could read only a
	// part of the previous state, or could not see all of its own.
	decode(s *State, record [][]byte, call *Call) (next *savedState, part bool)
}

// Open begins a session in cwd with a complete environment.
func Open(shell Shell, cwd string, env []string) *State {
	s := &State{shell: shell, cwd: cwd, env: env, family: shell.family()}
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if !identifier(name) && !strings.HasPrefix(name, "BASH_FUNC_") {
			s.odd = append(s.odd, entry)
		}
	}
	return s
}

// Clone returns an independent session with the same state.
func (s *State) Clone() *State {
	clone := *s // what a command changes, it replaces
	return &clone
}

// Cwd returns where the next command starts.
func (s *State) Cwd() string { return s.cwd }

// Exports reports whether the next command gets a variable in its environment.
func (s *State) Exports(name string) bool {
	if s.saved == nil {
		return slices.ContainsFunc(s.env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	}
	commands := s.saved.vars[name]
	if declared, ok := strings.CutPrefix(commands, "declare -"); ok {
		flags, _, _ := strings.Cut(declared, " ")
		return strings.Contains(flags, "x")
	}
	return strings.Contains(commands, "export "+name+"\n")
}

// Move sets where the next command starts.
func (s *State) Move(cwd string) { s.cwd = cwd }

// Command returns the program for text. Done must follow if call.Save is set.
func (s *State) Command(text string, call Call) Program {
	p := Program{Cwd: s.cwd}
	if call.Cwd != "" {
		p.Cwd = call.Cwd
	}
	program := s.family.program(s, &call)
	if len(text) > maxArgument {
		// First, before set -a can export it.
		program = "__hx_c=" + quote(text) + "\n" + program
		text = `\eval "$__hx_c"`
	}
	p.Files = append(p.Files, []byte(program))
	if s.saved != nil {
		p.Files = append(p.Files, []byte(s.family.state(s.saved, &call)))
		p.Env = slices.Clone(s.odd)
	} else {
		p.Env = slices.Clone(s.env)
	}
	p.Env = slices.DeleteFunc(p.Env, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return s.family.isExcluded(name)
	})
	for _, name := range sortKeys(call.Env) {
		if !identifier(name) {
			p.Env = append(removeVariable(p.Env, name), name+"="+call.Env[name])
		}
	}
	// So that the shell uses the name of the directory as it was given.
	p.Env = append(removeVariable(p.Env, "PWD"), "PWD="+p.Cwd)
	argv, env := s.family.command(s, call.FDPath(FirstFD), text)
	p.Argv, p.Env = argv, append(p.Env, env...)
	return p
}

func removeVariable(env []string, name string) []string {
	return slices.DeleteFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
}

// ShellArgs returns the arguments of a shell that runs text, even if text begins like an option.
func ShellArgs(text string) []string {
	if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+") {
		return []string{"-c", "--", text}
	}
	return []string{"-c", text}
}

// stateFD is the descriptor of the saved state.
const stateFD = FirstFD + 1

// Done reads the record that the shell of a call wrote. Without a complete record the shell was
// killed or replaced, and the previous state stays; cwdIfKilled is then the shell's last directory,
// if known. kept is also false if the shell could read or save only a part of the state.
func (s *State) Done(call Call, output []byte, cwdIfKilled string) (kept bool) {
	record := lastRecord(output)
	var next *savedState
	var part bool
	if record != nil {
		next, part = s.family.decode(s, record, &call)
	}
	if next == nil {
		if cwdIfKilled != "" {
			s.cwd = cwdIfKilled
		}
		return false
	}
	s.saved = next
	s.cwd = strings.TrimSuffix(string(record[0]), "\n")
	return !part
}

// maxFields is above the number of fields of any record.
const maxFields = 16

// lastRecord finds the last complete "\0[\0" field "\0" … field "\0]". No field contains a NUL
// byte, because no shell value can, and no field is a single bracket.
func lastRecord(output []byte) [][]byte {
	end := bytes.LastIndex(output, []byte("\x00]"))
	if end < 0 {
		return nil
	}
	begin := bytes.LastIndex(output[:end], []byte("\x00[\x00"))
	if begin < 0 {
		return nil
	}
	return bytes.SplitN(output[begin+3:end], []byte{0}, maxFields)
}

// quote returns any bytes as one shell word.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func identifier(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// exports returns commands that set the call's variables, except those that no shell variable can
// hold or that cannot be set.
func (c *Call) exports(cannot func(name string) bool) string {
	var b strings.Builder
	for _, name := range sortKeys(c.Env) {
		if identifier(name) && !cannot(name) {
			b.WriteString("\\export " + name + "=" + quote(c.Env[name]) + "\n")
		}
	}
	return b.String()
}

// suspendedOptions are off while the state is written; the letters of `$-` show their values.
var suspendedOptions = map[string]string{"errexit": "e", "nounset": "u", "verbose": "v", "xtrace": "x"}

// excludedOptions are options that depend on how the shell was started.
var excludedOptions = map[string]bool{"noexec": true, "onecmd": true, "privileged": true, "monitor": true,
	"history": true, "histexpand": true}

// defaultOptions are on in a new bash.
var defaultOptions = map[string]bool{"braceexpand": true, "hashall": true, "interactive-comments": true}

// optionName reports whether a word, which a tenant may have forged, can be an option.
func optionName(word string) bool {
	return word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz_-0123456789") == "" && word[0] != '-'
}

func sortKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
