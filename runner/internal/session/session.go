package session

import (
	"bytes"
	"path"
	"slices"
	"strings"
)

// maxArgument is the longest text that is given as an argument.
const maxArgument = 64 << 10

// FirstFD is the descriptor that the first of a Program's files becomes.
const FirstFD = 3

// Shell is the interpreter of a session.
type Shell struct {
	Name string // bash, sh, dash, ash, busybox
	Path string
}

// BestShell chooses the shell that keeps most state. A known one comes before "sh",
// which may be any shell.
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

// Keeps lists what lasts from one command to the next.
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
	Files [][]byte // offered from descriptor FirstFD on
}

// Call is what one command brings along.
type Call struct {
	Env map[string]string // for this command only
	Cwd string            // absolute; "" stays where the session is
	// Save is the path of the FIFO that the state is written to afterwards;
	// without it the command only starts from the state.
	Save string
	// FDPath gives the path under which a shell can open its own descriptor.
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

// saved is what the shell wrote, as the next one will read it.
type savedState struct {
	vars   map[string]string // commands that set each variable
	before string            // what is read before the variables
	after  string            // what is read after them
	// options is set last, so that nothing of the above is traced.
	options string
	// POSIX mode of bash, and the command that sets its variable.
	posix         bool
	posixVariable string
}

// kind is a family of shells.
type shellFamily interface {
	keeps() []string
	// apart is true for variables that a new shell must not find in its environment.
	isExcluded(name string) bool
	// command makes a shell read the file program and then run text.
	command(s *State, program, text string) (argv, env []string)
	program(s *State, call *Call) string
	// state makes the text that the program reads when there is a saved state.
	state(saved *savedState, call *Call) string
	// decode gives what a record holds; part is true when that is not all: the
	// shell could read only a part of the state before, or not see all of its own.
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

// Cwd is where the next command starts.
func (s *State) Cwd() string { return s.cwd }

// Move has the next command start elsewhere.
func (s *State) Move(cwd string) { s.cwd = cwd }

// Command makes the program for text. Done follows when call.Save is set.
func (s *State) Command(text string, call Call) Program {
	p := Program{Cwd: s.cwd}
	if call.Cwd != "" {
		p.Cwd = call.Cwd
	}
	program := s.family.program(s, &call)
	if len(text) > maxArgument {
		// First of all, while nothing that is set is exported by itself.
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
	// So that the shell takes over the name of the directory as it was given.
	p.Env = append(removeVariable(p.Env, "PWD"), "PWD="+p.Cwd)
	argv, env := s.family.command(s, call.FDPath(FirstFD), text)
	p.Argv, p.Env = argv, append(p.Env, env...)
	return p
}

func removeVariable(env []string, name string) []string {
	return slices.DeleteFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
}

// ShellArgs gives the arguments of a shell that runs text: one that begins like an
// option is none.
func ShellArgs(text string) []string {
	if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+") {
		return []string{"-c", "--", text}
	}
	return []string{"-c", text}
}

// stateFD is where the saved state is.
const stateFD = FirstFD + 1

// Done takes what the shell of a call wrote. Without a whole record the shell
// was killed or replaced, and the state before it still holds; cwdIfKilled is
// then where it was, if that is known. kept is false also where the shell could
// read or save only a part of the state.
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

// maxFields is more than any record has.
const maxFields = 16

// lastRecord finds the last complete "\0[\0" field "\0" … field "\0]". No field
// holds a NUL byte, for no shell value can, and none is a bracket alone.
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

// quote makes one shell word of any bytes.
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

// exports sets the call's variables that a shell can hold, but for those that
// cannot be set here.
func (c *Call) exports(cannot func(name string) bool) string {
	var b strings.Builder
	for _, name := range sortKeys(c.Env) {
		if identifier(name) && !cannot(name) {
			b.WriteString("\\export " + name + "=" + quote(c.Env[name]) + "\n")
		}
	}
	return b.String()
}

// suspendedOptions are off while the state is written; their letters tell how they were.
var suspendedOptions = map[string]string{"errexit": "e", "nounset": "u", "verbose": "v", "xtrace": "x"}

// excludedOptions are options that belong to how the shell was started.
var excludedOptions = map[string]bool{"noexec": true, "onecmd": true, "privileged": true, "monitor": true,
	"history": true, "histexpand": true}

// defaultOptions are options that a new bash has set.
var defaultOptions = map[string]bool{"braceexpand": true, "hashall": true, "interactive-comments": true}

// optionName tells whether a word, which a tenant may have forged, can be one.
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
