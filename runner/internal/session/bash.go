package session

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"hermes-exec/runner/internal/ipc"
)

//go:embed bash.sh
var bashSave string

type bash struct{}

func (bash) keeps() []string {
	return []string{"cwd", "exports", "variables", "arrays", "functions", "aliases", "options", "umask"}
}

// command lets the shell read the program as its start-up file. The text then runs exactly as in
// any bash -c, including the line numbers of messages.
func (bash) command(s *State, program, text string) (argv, env []string) {
	return append([]string{s.shell.Path}, ShellArgs(text)...), []string{"BASH_ENV=" + program}
}

// program is read by the shell in one piece, before any alias or option of the tenant takes effect.
// Its own messages are discarded: a state that a tenant made unreadable must not show in the
// command's output.
func (bash) program(s *State, call *Call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\nunset BASH_ENV\nexec %d<&-\n__hx_l=\n", FirstFD)
	if call.Save != "" {
		b.WriteString("__hx_w=" + quote(call.Save) + " __hx_v=(" + strings.Join(shadowingFunctions, " ") + ")\n" +
			bashSave)
	}
	if s.saved == nil {
		b.WriteString(call.exports(isPosixMode) + "__hx_l=1\nshopt -s expand_aliases\n" + s.posixMode(call))
	} else {
		// Only keywords may follow in the program: functions come before builtins.
		fmt.Fprintf(&b, ". %s\n", call.FDPath(stateFD))
	}
	b.WriteString("} 2>/dev/null\n")
	return b.String()
}

// state ends with one command that is parsed as a whole before it changes how commands are parsed.
// It contains the functions that would be called instead of the builtins that it uses.
func (bash) state(saved *savedState, call *Call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "exec %d<&-\n%s", stateFD, saved.before)
	for _, name := range sortKeys(saved.vars) {
		b.WriteString(saved.vars[name])
	}
	options := saved.options
	if value, ok := call.Env[posixMode]; ok {
		options += enterPosixMode(value)
	}
	if call.Save == "" {
		options = strings.ReplaceAll(options, aliasTrap, "")
	}
	b.WriteString(call.exports(isPosixMode) + saved.after + "{\n__hx_l=1\n" + options + "}\n")
	return b.String()
}

// isExcluded excludes POSIXLY_CORRECT: in POSIX mode bash reads no start-up file, and a function
// never comes before trap.
func (bash) isExcluded(name string) bool { return name == posixMode }

func (bash) isVariable(_ *State, name string) bool { return !isOwnVariable(name) && name != posixMode }

func isPosixMode(name string) bool { return name == posixMode }

func enterPosixMode(value string) string {
	return aliasTrap + "export " + posixMode + "=" + quote(value) + "\n"
}

// posixMode returns the text that enters POSIX mode if the first command's environment demands it.
func (s *State) posixMode(call *Call) string {
	value, ok := call.Env[posixMode]
	for _, entry := range s.env {
		if own, isSet := strings.CutPrefix(entry, posixMode+"="); isSet && !ok {
			value, ok = own, true
		}
	}
	switch {
	case !ok:
		return ""
	case call.Save == "":
		return strings.TrimPrefix(enterPosixMode(value), aliasTrap)
	}
	return enterPosixMode(value)
}

// aliasTrap replaces trap in POSIX mode, where no function comes before trap. It belongs to
// bash.sh.
const aliasTrap = "alias trap=__hx_trap\n"

// ownVariables are set by the shell itself, or describe one process.
var ownVariables = map[string]bool{
	"BASH": true, "BASHOPTS": true, "BASHPID": true, "EUID": true, "PPID": true, "SHELLOPTS": true, "UID": true,
	"GROUPS": true, "DIRSTACK": true,
	"FUNCNAME": true, "LINENO": true, "RANDOM": true, "SRANDOM": true, "SECONDS": true, "EPOCHSECONDS": true,
	"EPOCHREALTIME": true, "PIPESTATUS": true,
	"HISTCMD": true, "COMPREPLY": true, "_": true, "SHLVL": true, "PWD": true, "HOSTTYPE": true, "MACHTYPE": true,
	"OSTYPE": true, "OPTIND": true,
	"OPTERR": true, "BASH_ALIASES": true, "BASH_ARGC": true, "BASH_ARGV": true, "BASH_ARGV0": true, "BASH_CMDS": true,
	"BASH_COMMAND":          true,
	"BASH_EXECUTION_STRING": true, "BASH_LINENO": true, "BASH_MONOSECONDS": true, "BASH_REMATCH": true,
	"BASH_SOURCE": true, "BASH_SUBSHELL": true,
	"BASH_TRAPSIG": true, "BASH_VERSINFO": true, "BASH_VERSION": true, "BASH_XTRACEFD": true, "COMP_CWORD": true,
	"COMP_KEY": true, "COMP_LINE": true,
	"COMP_POINT": true, "COMP_TYPE": true, "COMP_WORDBREAKS": true, "COMP_WORDS": true,
}

func isOwnVariable(name string) bool {
	return ownVariables[name] || strings.HasPrefix(name, "__hx_") || name == ipc.RequestVariable
}

// posixMode is the variable that enables this mode, wherever it is set.
const posixMode = "POSIXLY_CORRECT"

// shadowingFunctions are the functions that would be called instead of builtins that saving or
// reading a state needs.
var shadowingFunctions = []string{"alias", "builtin", "declare", "enable", "local", "printf", "pwd", "set", "shopt",
	"umask", "unalias"}

// decode reads the record that __hx_save of bash.sh writes.
func (bash) decode(s *State, record [][]byte, call *Call) (next *savedState, part bool) {
	if len(record) != 12 {
		return nil, false
	}
	vars := map[string]string{}
	for _, d := range declarations(string(record[6])) {
		if !isOwnVariable(d.name) {
			vars[d.name] = d.text
		}
	}
	hidden := strings.Fields(string(record[11]))
	s.restore(vars, slices.Concat(sortKeys(call.Env), hidden))
	setOptions, shoptions := strings.Split(string(record[3]), ":"), strings.Split(string(record[4]), ":")
	posix, posixVariable := slices.Contains(setOptions, "posix"), vars[posixMode]
	if _, ofCall := call.Env[posixMode]; ofCall {
		posix, posixVariable = s.wasPosix()
	}
	delete(vars, posixMode)
	globIgnored := ""
	if _, ok := vars["GLOBIGNORE"]; ok {
		// Setting this variable has enabled dotglob, and unsetting it disables it.
		without := slices.DeleteFunc(slices.Clone(shoptions), func(name string) bool { return name == "dotglob" })
		if len(without) == len(shoptions) {
			globIgnored = "shopt -u dotglob\n"
		}
		shoptions = without
	}
	next = &savedState{vars: vars, posix: posix, posixVariable: posixVariable, before: shopts(shoptions) +
		unset(vars, "HOSTNAME", "IFS", "OLDPWD", "PATH", "PS4", "SHELL", "TERM")}
	if umask := strings.TrimSpace(string(record[5])); umask != "" && strings.Trim(umask, "01234567") == "" {
		next.before += "umask " + umask + "\n"
	}
	defined, exports, functions := string(record[8]), string(record[9]), strings.Trim(string(record[10]), "\n")
	if functions != "" {
		// Exported functions appear again, and declare may be a function.
		defined, functions = removeExports(defined), removeExports(functions)
	}
	named, unnamed := "", ""
	if strings.Contains(defined, "coproc COPROC ") && !strings.Contains("\n"+defined, "\nCOPROC () ") {
		named, unnamed = coprocNamed, coprocUnnamed
	}
	next.after = globIgnored + named + removeTrapFunction(defined)
	if functions != "" {
		next.after += unsetShadowing + shopts(shoptions)
		if !slices.Contains(shoptions, "inherit_errexit") {
			next.after += "shopt -u inherit_errexit\n"
		}
		next.after += named + lastFunctions(functions, exports)
	}
	next.after += exports
	next.options = unnamed + strings.Replace(string(record[7]), "alias trap='__hx_trap'\n", "", 1)
	if len(shoptions) == 1 || slices.Contains(shoptions, "expand_aliases") {
		next.options += "shopt -s expand_aliases\n"
	}
	last := ""
	if posix {
		next.options += aliasTrap
		// With this option declare would not see the variable.
		if at := slices.Index(setOptions, "keyword"); at >= 0 {
			setOptions, last = slices.Delete(setOptions, at, at+1), "set -o keyword\n"
		}
	}
	next.options += bashSetOptions(string(record[2]), setOptions)
	if functions != "" {
		next.options += "__hx_own\n"
	}
	switch {
	case posix && functions == "" && posixVariable != "":
		next.options += posixVariable
	case posix:
		next.options += posixMode + "=y\n"
	}
	next.options += last
	return next, len(record[1]) == 0 || len(hidden) > 0
}

// wasPosix returns POSIX mode, and its variable, before a call.
func (s *State) wasPosix() (on bool, variable string) {
	if s.saved != nil {
		return s.saved.posix, s.saved.posixVariable
	}
	variable = s.posixMode(&Call{})
	return variable != "", variable
}

// removeTrapFunction removes the function of bash.sh that replaces trap: without saving, the rest
// of it is missing.
func removeTrapFunction(functions string) string {
	const begin, end = "trap () \n", "\n}\n"
	from := 0
	if !strings.HasPrefix(functions, begin) {
		if from = strings.Index(functions, "\n"+begin) + 1; from == 0 {
			return functions
		}
	}
	size := strings.Index(functions[from:], end)
	if size < 0 || !strings.Contains(functions[from:from+size], `__hx_trap "$@"`) {
		return functions
	}
	return functions[:from] + functions[from+size+len(end):]
}

// unsetShadowing removes functions although any name may be shadowed: in POSIX mode special
// builtins come before functions. It leaves options of that mode behind.
var unsetShadowing = posixMode + "=y\n\\unset -f " + strings.Join(shadowingFunctions, " ") +
	"\n\\unset " + posixMode + "\n"

// removeExports removes the line that declare -f prints after an exported function.
func removeExports(functions string) string {
	var kept []string
	lines := strings.Split(functions, "\n")
	for i, line := range lines {
		if i == 0 || lines[i-1] != "}" || !strings.HasPrefix(line, "declare -fx ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

// lastFunctions returns the function that defines the shadowing functions when all options are set.
// Exported ones are marked before, because afterwards no builtin can be called, and set -a must not
// decide it.
func lastFunctions(functions, exports string) string {
	var marks strings.Builder
	for _, line := range strings.Split(exports, "\n") {
		words := strings.Fields(line)
		if len(words) == 3 && slices.Contains(shadowingFunctions, words[2]) {
			marks.WriteString(words[2] + " () { :; }\n")
		}
	}
	return "__hx_mark() {\nlocal - && set -a\n" + marks.String() + "}\n__hx_own() {\nlocal - && set +a\n__hx_mark\n" +
		functions + "\n}\n"
}

// A coprocess of a simple command has no name, but declare -f prints one, which would be parsed as
// the command's first word. An alias removes it, unless a function has that name.
const (
	coprocNamed   = "alias COPROC=\nshopt -s expand_aliases\n"
	coprocUnnamed = "unalias COPROC\nshopt -u expand_aliases\n"
)

// shoptDefaults are on in a new shell. expand_aliases is set separately, and extdebug starts a
// debugger that most images lack.
var shoptDefaults = []string{
	"checkwinsize", "cmdhist", "complete_fullquote", "extquote", "force_fignore", "globasciiranges", "globskipdots",
	"hostcomplete",
	"interactive_comments", "patsub_replacement", "progcomp", "promptvars", "sourcepath",
}

// shopts returns commands for the options that differ from a new shell. They come first, because
// they change how functions are parsed.
func shopts(on []string) string {
	if len(on) == 1 && on[0] == "" {
		return ""
	}
	var set, unset []string
	for _, name := range on {
		if name != "expand_aliases" && name != "login_shell" && name != "extdebug" &&
			!slices.Contains(shoptDefaults, name) && optionName(name) {
			set = append(set, name)
		}
	}
	for _, name := range shoptDefaults {
		if !slices.Contains(on, name) {
			unset = append(unset, name)
		}
	}
	text := ""
	if len(set) > 0 {
		text += "shopt -s " + strings.Join(set, " ") + "\n"
	}
	if len(unset) > 0 {
		text += "shopt -u " + strings.Join(unset, " ") + "\n"
	}
	return text
}

// bashSetOptions returns a command for the options that differ from a new shell. The four that were
// off while the state was written are in the letters of `$-`.
func bashSetOptions(letters string, on []string) string {
	var b strings.Builder
	for _, name := range on {
		if optionName(name) && name != "posix" && !excludedOptions[name] && !defaultOptions[name] &&
			suspendedOptions[name] == "" {
			b.WriteString(" -o " + name)
		}
	}
	for _, name := range sortKeys(defaultOptions) {
		if !slices.Contains(on, name) {
			b.WriteString(" +o " + name)
		}
	}
	for _, name := range sortKeys(suspendedOptions) {
		if strings.Contains(letters, suspendedOptions[name]) {
			b.WriteString(" -o " + name)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "set" + b.String() + "\n"
}

// declaration is one variable in the output of declare -p.
type declaration struct{ name, text string }

// declarations splits the output of declare -p. Values are quoted and may contain newlines.
func declarations(text string) []declaration {
	var list []declaration
	for text != "" {
		size := constantSize(text)
		words := strings.SplitN(text[:size], " ", 3)
		if len(words) == 3 && words[0] == "declare" && strings.HasPrefix(words[1], "-") {
			name, _, _ := strings.Cut(words[2], "=")
			if identifier(name) {
				list = append(list, declaration{name, declare(words[1][1:], words[2])})
			}
		}
		text = strings.TrimPrefix(text[size:], "\n")
	}
	return list
}

// declare returns commands that set a variable as it was. Attributes that change the assigned value
// come after the assignment.
func declare(flags, assignment string) string {
	const changing = "ciulr"
	name, _, ok := strings.Cut(assignment, "=")
	late := strings.Map(func(flag rune) rune {
		if strings.ContainsRune(changing, flag) {
			return flag
		}
		return -1
	}, flags)
	if !ok || strings.Trim(late, "r") == "" {
		return "declare -" + flags + " " + assignment + "\n"
	}
	early := strings.Map(func(flag rune) rune {
		if strings.ContainsRune(changing, flag) {
			return -1
		}
		return flag
	}, flags)
	if early == "" {
		early = "-"
	}
	return "declare -" + early + " " + assignment + "\ndeclare -" + late + " " + name + "\n"
}

// constantSize returns the size of text up to the first unquoted newline.
func constantSize(text string) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\n':
			return i
		case '\\':
			i++
		case '\'':
			escapes := i > 0 && text[i-1] == '$'
			for i++; i < len(text) && text[i] != '\''; i++ {
				if escapes && text[i] == '\\' {
					i++
				}
			}
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return len(text)
}
