package session

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"hermes-exec/runner/internal/ipc"
)

//go:embed posix.sh
var posixSave string

// posix is dash, busybox ash and similar shells. They cannot print functions, and a mistake in a
// special builtin ends them, so the text that they read is generated here.
type posix struct{}

func (posix) keeps() []string {
	return []string{"cwd", "exports", "variables", "aliases", "options", "umask"}
}

// command puts the program on a line before text, because these shells read no start-up file here.
// It must be a line of its own: aliases are expanded when a line is read.
func (posix) command(s *State, program, text string) (argv, env []string) {
	argv = []string{s.shell.Path}
	if path.Base(s.shell.Path) == "busybox" {
		argv = append(argv, "ash")
	}
	return append(argv, "-c", ". "+program+"\n"+text, s.shell.Path), nil
}

// program has the tenant's aliases and options last, because they change how text is parsed.
func (posix) program(s *State, call *Call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exec %d<&-\n__hx_l=\n", FirstFD)
	if call.Save != "" {
		b.WriteString("__hx_w=" + quote(call.Save) + "\n" + posixSave)
	}
	if s.saved == nil {
		b.WriteString(call.exports(noName) + "__hx_l=1\n")
	} else {
		fmt.Fprintf(&b, ". %s\n%s", call.FDPath(stateFD), s.saved.options)
	}
	return b.String()
}

func (posix) state(saved *savedState, call *Call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exec %d<&-\n%s", stateFD, saved.before)
	for _, name := range sortKeys(saved.vars) {
		b.WriteString(saved.vars[name])
	}
	// Setting a readonly variable would end the shell.
	isReadonly := func(name string) bool { return strings.HasSuffix(saved.vars[name], readonlyName(name)) }
	b.WriteString(call.exports(isReadonly) + saved.after + "__hx_l=1\n")
	return b.String()
}

func (posix) isExcluded(string) bool { return false }

func (posix) isVariable(s *State, name string) bool { return s.keepsVariable(name) }

func noName(string) bool { return false }

func readonlyName(name string) string { return "readonly " + name + "\n" }

// trapAlias is the value of the alias trap, as a shell prints it.
const trapAlias = "'__hx_trap'"

// specialVariables are set by the shell itself, or would end it.
var specialVariables = map[string]bool{
	"PPID": true, "PWD": true, "OPTIND": true, "OPTARG": true, "OPTERR": true, "LINENO": true, "FUNCNAME": true,
	"_": true, "SHLVL": true, "RANDOM": true,
	"EPOCHSECONDS": true, "EPOCHREALTIME": true,
}

// otherShellVariables are special in other shells than dash and busybox.
var otherShellVariables = map[string]bool{
	"SECONDS": true, "EUID": true, "UID": true, "PIPESTATUS": true, "SHELLOPTS": true, "BASHOPTS": true, "GROUPS": true,
	"DIRSTACK": true, "BASHPID": true,
	"BASH": true,
}

// keepsVariable reports whether a variable is the tenant's.
func (s *State) keepsVariable(name string) bool {
	if !identifier(name) || specialVariables[name] || strings.HasPrefix(name, "__hx_") || name == ipc.RequestVariable {
		return false
	}
	isBasicShell := s.shell.Name == "dash" || s.shell.Name == "busybox" || s.shell.Name == "ash"
	return isBasicShell || !otherShellVariables[name] && !strings.HasPrefix(name, "BASH_")
}

func (posix) decode(s *State, record [][]byte, call *Call) (next *savedState, part bool) {
	if len(record) != 8 {
		return nil, false
	}
	letters, opts, umask := string(record[1]), string(record[2]), strings.TrimSpace(string(record[3]))
	values, exports, readonly, aliases := entries(record[4], ""), entries(record[5], "export "),
		entries(record[6], "readonly "), entries(record[7], "alias ")
	vars := map[string]string{}
	next = &savedState{vars: vars, options: options(letters, opts)}
	if len(umask) > 0 && strings.Trim(umask, "01234567") == "" {
		next.before = "umask " + umask + "\n"
	}
	for _, e := range values {
		if s.keepsVariable(e.name) {
			vars[e.name] = e.name + "=" + e.value + "\n"
		}
	}
	for _, e := range exports {
		if s.keepsVariable(e.name) {
			vars[e.name] += "export " + e.name + "\n"
		}
	}
	for _, e := range readonly {
		if s.keepsVariable(e.name) {
			vars[e.name] += readonlyName(e.name)
		}
	}
	s.restore(vars, sortKeys(call.Env))
	next.before += unset(vars, "IFS", "PATH", "PS4")
	for _, e := range aliases {
		if e.value != trapAlias && aliasName(e.name) {
			next.after += "\\alias " + e.name + "=" + e.value + "\n"
		}
	}
	return next, false
}

// unset returns commands for variables that a new shell sets although they had been unset.
func unset(vars map[string]string, names ...string) string {
	text := ""
	for _, name := range names {
		if !strings.Contains(vars[name], "=") {
			text += "unset " + name + "\n"
		}
	}
	return text
}

// restore restores the values from before a call: of variables that were set for the call alone,
// and of variables that a function's local variable hides.
func (s *State) restore(vars map[string]string, names []string) {
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !identifier(name) }) {
		delete(vars, name)
		if s.saved != nil {
			if before, ok := s.saved.vars[name]; ok {
				vars[name] = before
			}
			continue
		}
		for _, entry := range s.env {
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				vars[name] = name + "=" + quote(value) + "\nexport " + name + "\n"
			}
		}
	}
}

// options returns a command for `$-` and lines of `set -o name`.
func options(letters, lines string) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != "set" || !optionName(words[2]) || excludedOptions[words[2]] ||
			unsafeOptions[words[2]] {
			continue
		}
		on := words[1] == "-o"
		if letter := suspendedOptions[words[2]]; letter != "" {
			on = strings.Contains(letters, letter)
		}
		if on {
			b.WriteString(" -o " + words[2])
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\\set" + b.String() + "\n"
}

// unsafeOptions are options that dash refuses or that change how it reads.
var unsafeOptions = map[string]bool{"interactive": true, "stdin": true, "vi": true, "emacs": true, "ignoreeof": true,
	"nolog": true, "debug": true}

func aliasName(name string) bool {
	return name != "" && !strings.ContainsAny(name, " \t\n'\"\\$`&|;<>()=/*?[]{}#!")
}

type entry struct{ name, value string } // value as a shell word

// entries parses NAME=WORD lines as shells print them. A quoted word may contain newlines. Lines
// that cannot be parsed are skipped.
func entries(text []byte, prefix string) []entry {
	var list []entry
	rest := string(text)
	for rest != "" {
		line := strings.TrimPrefix(rest, prefix)
		line = strings.TrimPrefix(line, "-- ")
		name, after, ok := strings.Cut(line, "=")
		if !ok || strings.Contains(name, "\n") {
			// A name without a value: an exported variable that is not set.
			bare, next, _ := strings.Cut(line, "\n")
			if identifier(bare) && prefix != "" {
				list = append(list, entry{bare, ""})
			}
			rest = next
			continue
		}
		size, ok := wordSize(after)
		if ok {
			list = append(list, entry{name, after[:size]})
		}
		rest = after[size:]
		if _, next, hasMore := strings.Cut(rest, "\n"); hasMore {
			rest = next
		} else {
			rest = ""
		}
	}
	return list
}

// wordSize returns the size of one constant shell word. ok is false if it contains something that a
// shell would expand.
func wordSize(text string) (size int, ok bool) {
	ok = true
	for size < len(text) {
		switch c := text[size]; {
		case c == '\n':
			return size, ok
		case c == '\'':
			end := strings.IndexByte(text[size+1:], '\'')
			if end < 0 {
				return len(text), false
			}
			size += end + 2
		case c == '"':
			end := size + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				} else if text[end] == '$' || text[end] == '`' {
					ok = false
				}
				end++
			}
			if end >= len(text) {
				return len(text), false
			}
			size = end + 1
		case c == '\\':
			size = min(size+2, len(text))
		case strings.IndexByte("$`&|;<>() \t*?[]~{}#!", c) >= 0:
			ok = false
			size++
		default:
			size++
		}
	}
	return size, ok
}
