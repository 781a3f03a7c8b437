package session

import (
	_ "embed"
	"fmt"
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
	b.WriteString("__hx_a=1 __hx_n= __hx_p=\n")
	if s.saved != nil {
		fmt.Fprintf(&b, ". %s\nexec %d<&-\n", call.FDPath(stateFD(call)), stateFD(call))
	}
	if names := call.sorted(); len(names) > 0 {
		list := strings.Join(names, " ")
		fmt.Fprintf(&b, "__hx_n=' %s '\n__hx_p=$(builtin declare -p %s)\nbuiltin export", list, list)
		for _, name := range names {
			b.WriteString(" " + name + "=" + quote(call.Env[name]))
		}
		b.WriteString("\n")
	}
	if call.Keep {
		b.WriteString(bashSave)
	}
	b.WriteString("exec 2>&61 61>&-\n[[ -z $__hx_a ]] || builtin shopt -s expand_aliases\nunset __hx_a\n")
	return b.String()
}

// ourOptions are off while the state is written; their letters tell how they were.
var ourOptions = map[string]string{"errexit": "e", "nounset": "u", "verbose": "v", "xtrace": "x"}

// leftOut are options that belong to how the shell was started.
var leftOut = map[string]bool{"noexec": true, "onecmd": true, "privileged": true, "monitor": true, "history": true, "histexpand": true}

// onByDefault are options that a new shell has set.
var onByDefault = map[string]bool{"braceexpand": true, "hashall": true, "interactive-comments": true}

func (bash) decode(_ *State, record [][]byte, _ *Call) *saved {
	if len(record) != 4 {
		return nil
	}
	return &saved{text: string(record[1]), options: options(string(record[2]), string(record[3]))}
}

// options makes a command out of `$-` and lines of `set -o name`. The state
// is a tenant's to forge, so only words of letters and dashes pass.
func options(letters, lines string) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != "set" || leftOut[words[2]] || strings.Trim(words[2], "abcdefghijklmnopqrstuvwxyz-") != "" {
			continue
		}
		on := words[1] == "-o"
		if letter := ourOptions[words[2]]; letter != "" {
			on = strings.Contains(letters, letter)
		}
		if on != onByDefault[words[2]] {
			sign := "+o "
			if on {
				sign = "-o "
			}
			b.WriteString(" " + sign + words[2])
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "set" + b.String() + ";"
}
