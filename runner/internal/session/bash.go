package session

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed bash.sh
var bashSave string

type bash struct{}

func (bash) keeps() []string {
	return []string{"cwd", "exports", "variables", "arrays", "functions", "aliases", "options", "umask"}
}

// command lets the shell read the program as its start-up file: then text runs
// exactly as in any bash -c, to the line numbers of its messages.
func (bash) command(s *State, program, text string) (argv, env []string) {
	return []string{s.shell.Path, "-c", text}, []string{"BASH_ENV=" + program}
}

// program is read by the shell in one piece. Its own messages go nowhere: a
// state that a tenant made unreadable must not show in the command's output.
func (bash) program(s *State, call *Call) string {
	var b strings.Builder
	b.WriteString("unset BASH_ENV; exec 3<&- 61>&2 2>/dev/null\n")
	if call.Keep {
		fmt.Fprintf(&b, "exec 62>&%d %d>&-\n", saveFD, saveFD)
	}
	expand := true
	if s.saved != nil {
		fmt.Fprintf(&b, ". %s\nexec %d<&-\n", call.FDPath(stateFD(call)), stateFD(call))
		expand = s.saved.expandAliases
	}
	for _, name := range call.sorted() {
		b.WriteString("builtin export " + name + "=" + quote(call.Env[name]) + "\n")
	}
	if call.Keep {
		b.WriteString(bashSave)
	}
	b.WriteString("exec 2>&61 61>&-\n")
	// Only now: until here aliases would change what is read.
	if expand {
		b.WriteString("builtin shopt -s expand_aliases\n")
	}
	return b.String()
}

// ownVariables are set by the shell itself, or tell about one process.
var ownVariables = map[string]bool{
	"BASH": true, "BASHOPTS": true, "BASHPID": true, "EUID": true, "PPID": true, "SHELLOPTS": true, "UID": true, "GROUPS": true, "DIRSTACK": true,
	"FUNCNAME": true, "LINENO": true, "RANDOM": true, "SRANDOM": true, "SECONDS": true, "EPOCHSECONDS": true, "EPOCHREALTIME": true, "PIPESTATUS": true,
	"HISTCMD": true, "COMPREPLY": true, "_": true, "SHLVL": true, "PWD": true, "HOSTTYPE": true, "MACHTYPE": true, "OSTYPE": true, "OPTIND": true,
	"OPTERR": true, "COLUMNS": true, "LINES": true, "POSIXLY_CORRECT": true,
}

func isOwn(name string) bool {
	return ownVariables[name] || strings.HasPrefix(name, "BASH_") || strings.HasPrefix(name, "COMP_") || strings.HasPrefix(name, "__hx_")
}

// decode reads cwd, $-, umask, declare -p, alias -p, and the functions.
func (bash) decode(s *State, record [][]byte, call *Call) *saved {
	if len(record) != 6 {
		return nil
	}
	vars := map[string]string{}
	var names []string
	shellOptions, bashOptions := "", ""
	for _, d := range declarations(string(record[3])) {
		switch {
		case d.name == "SHELLOPTS":
			shellOptions = d.value()
		case d.name == "BASHOPTS":
			bashOptions = d.value()
		case !isOwn(d.name):
			names = append(names, d.name)
			vars[d.name] = d.text
		}
	}
	s.restoreCallEnv(vars, call)
	for name := range call.Env {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	on := strings.Split(bashOptions, ":")
	var b strings.Builder
	b.WriteString(shopts(on))
	if umask := strings.TrimSpace(string(record[2])); umask != "" && strings.Trim(umask, "01234567") == "" {
		b.WriteString("umask " + umask + "\n")
	}
	for _, name := range names {
		b.WriteString(vars[name])
	}
	b.Write(record[4])
	b.Write(record[5])
	return &saved{
		text: b.String(), vars: vars, expandAliases: bashOptions == "" || slices.Contains(on, "expand_aliases"),
		options: bashSetOptions(string(record[1]), strings.Split(shellOptions, ":")),
	}
}

// shoptDefaults are on in a new shell; expand_aliases is set apart.
var shoptDefaults = []string{
	"checkwinsize", "cmdhist", "complete_fullquote", "extquote", "force_fignore", "globasciiranges", "globskipdots", "hostcomplete",
	"interactive_comments", "patsub_replacement", "progcomp", "promptvars", "sourcepath",
}

// shopts makes commands for what differs from a new shell. They come first:
// how functions are read depends on them.
func shopts(on []string) string {
	if len(on) == 1 && on[0] == "" {
		return ""
	}
	var set, unset []string
	for _, name := range on {
		if name != "expand_aliases" && name != "login_shell" && !slices.Contains(shoptDefaults, name) && optionName(name) {
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

// bashSetOptions makes a command of what differs from a new shell. The four
// that were off while the state was written are in the letters of `$-`.
func bashSetOptions(letters string, on []string) string {
	var b strings.Builder
	for _, name := range on {
		if optionName(name) && !leftOut[name] && !onByDefault[name] && ourOptions[name] == "" {
			b.WriteString(" -o " + name)
		}
	}
	for _, name := range sortedKeys(onByDefault) {
		if !slices.Contains(on, name) {
			b.WriteString(" +o " + name)
		}
	}
	for _, name := range sortedKeys(ourOptions) {
		if strings.Contains(letters, ourOptions[name]) {
			b.WriteString(" -o " + name)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "set" + b.String()
}

// declaration is one variable as declare -p prints it.
type declaration struct{ name, text string }

// value is the text between the first pair of double quotes, for the values
// that the shell itself makes.
func (d *declaration) value() string {
	_, rest, _ := strings.Cut(d.text, `="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// declarations splits what declare -p printed. Values are quoted and may hold
// newlines.
func declarations(text string) []declaration {
	var list []declaration
	for text != "" {
		size := constant(text)
		words := strings.SplitN(text[:size], " ", 3)
		if len(words) == 3 && words[0] == "declare" && strings.HasPrefix(words[1], "-") {
			name, _, _ := strings.Cut(words[2], "=")
			if identifier(name) {
				list = append(list, declaration{name, text[:size] + "\n"})
			}
		}
		text = strings.TrimPrefix(text[size:], "\n")
	}
	return list
}

// constant measures text up to the first newline that is not quoted.
func constant(text string) int {
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
