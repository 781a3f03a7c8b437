package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command's changes to its descriptors and limits do not cost the state.
func TestDescriptorsAndLimitsOfTheCommand(t *testing.T) {
	for _, text := range []string{
		"exec 2>&-", "exec >&-", "exec >&- 2>&-", "exec >/dev/null 2>&1", "exec 1>&2", "exec </dev/null",
		"exec 3>/dev/null 4>&1", "exec 9>&-",
		`i=3; while [ $i -lt $last ]; do eval "exec $i>&-"; i=$((i+1)); done`, "ulimit -n 20", "ulimit -f 0",
		"ulimit -c 0", "umask 777",
		`for f in /proc/self/fd/[0-9]; do eval "exec ${f##*/}>&-"; done`, "exec 4</dev/null 5</dev/null",
	} {
		eachShell(t, func(t *testing.T, s *tester) {
			// dash has no descriptors of two digits.
			last := "255"
			if s.state.shell.Name == "dash" {
				last = "10"
			}
			s.expect("V=old; last="+last, "", 0)
			if r := s.run("V=new; cd /usr; " + text + "; W=last"); !r.kept || r.code != 0 {
				t.Fatalf("%s: %+v", text, r)
			}
			s.expect("umask 022; echo $V $W $PWD", "new last /usr\n", 0)
		})
	}
}

// A tenant's functions, aliases and disabled builtins shadow the commands that the wrapper needs.
func TestFunctionsNamedAsBuiltins(t *testing.T) {
	names := []string{
		"alias", "builtin", "cd", "command", "declare", "enable", "eval", "exec", "exit", "export", "hash", "kill",
		"local", "printf", "pwd", "read",
		"readonly", "return", "set", "shift", "shopt", "source", "test", "trap", "type", "typeset", "ulimit", "umask",
		"unalias", "unset", "wait", "[", ".", ":",
	}
	for _, name := range names {
		s := open(t, shells[0])
		s.expect("V=new; export E=1; shopt -s dotglob; set -o pipefail; alias hi='echo hello'; ok() { echo ok; }; "+
			"function "+name+" { echo mine; }", "", 0)
		s.expect(`echo "$V $E" $(hi) $(ok) $SHELLOPTS; `+name,
			"new 1 hello ok braceexpand:hashall:interactive-comments:pipefail\nmine\n", 0)
		s.expect(`V=newer; `+name, "mine\n", 0)
		s.expect(`echo $V; `+name, "newer\nmine\n", 0)
	}
	s := open(t, shells[0])
	s.expect("V=new; "+strings.Join(names, "() { echo mine; }; ")+"() { echo mine; }", "", 0)
	s.expect("echo $V; cd; builtin; declare", "new\nmine\nmine\nmine\n", 0)
	s.expect("echo $V; V=2; set; printf", "new\nmine\nmine\n", 0)
	s.expect("echo $V", "2\n", 0)
}

// Options and exports are as in one shell.
func TestFunctionsNamedAsBuiltinsChangeNothingElse(t *testing.T) {
	const seen = `command shopt -q inherit_errexit && command echo inherited; env | grep -a ^BASH_FUNC_ | cut -d% -f1; [[ $- != *a* ]] || command echo all`
	for _, name := range []string{"alias", "builtin", "declare", "echo", "enable", "local", "printf", "set", "shopt",
		"typeset", "unalias", "unset"} {
		exported := "BASH_FUNC_" + name + "\n"
		for text, want := range map[string]string{
			name + "() { command echo called; }":                              "",
			name + "() { command echo called; }; export -f " + name:           exported,
			name + "() { command echo called; }; command set -a":              "all\n",
			"set -a; " + name + "() { command echo called; }":                 exported + "all\n",
			"set -a; " + name + "() { command echo called; }; command set +a": exported,
		} {
			for _, before := range []string{"", "builtin() { :; }; "} {
				s := open(t, shells[0])
				s.expect(before+text, "", 0)
				for range 2 {
					s.expect(seen, want, 0)
				}
			}
		}
	}
}

func TestTrapsBesideFunctionsNamedAsBuiltins(t *testing.T) {
	for _, name := range []string{"break", "continue", "local", "return", "set", "shift", "unset"} {
		s := open(t, shells[0])
		s.expect(name+"() { echo mine; }; declare -n ref=E; E=1", "", 0)
		s.expect("trap 'echo usr; g() { :; }' USR1; trap -- 'echo $?' EXIT; trap -p EXIT; kill -USR1 $$; (exit 3)",
			"trap -- 'echo $?' EXIT\nusr\n3\n", 3)
		s.expect("f() { exit 4; }; f", "", 4)
		s.expect(name+"; unset -f "+name+"; f", "mine\n"+map[bool]string{true: "mine\n"}[name == "unset"], 4)
	}
}

// declare -f prints a name where it cannot be read as one.
func TestCoprocessesInFunctions(t *testing.T) {
	for _, inTheWay := range []string{"", "builtin() { command builtin \"$@\"; }",
		"unalias() { :; }; shopt() { :; }; alias() { :; }"} {
		s := open(t, shells[0])
		s.expect("alias cat='echo never' COPROC='echo mine'; "+inTheWay, "", 0)
		r := s.run("f() { coproc \\cat; echo in >&${COPROC[1]}; exec {COPROC[1]}>&-; read -r x <&${COPROC[0]}; echo " +
			"$x; }; printf() { coproc echo; }\n" +
			"g() { coproc { :; }; coproc N { :; }; echo 'coproc COPROC x'; }; declare -f f g printf")
		for range 3 {
			s.expect("declare -f f g printf", r.out, 0)
		}
		s.expect("f; COPROC too; shopt -q expand_aliases; echo $?; unset -f shopt alias unalias; alias",
			"in\nmine too\n0\nalias COPROC='echo mine'\nalias cat='echo never'\n", 0)
		s.expect("unalias COPROC", "", 0)
		s.expect("f; alias", "in\nalias cat='echo never'\n", 0)
		s.expect("COPROC() { echo ours; }", "", 0)
		s.expect("COPROC; declare -F f g printf", "ours\nf\ng\nprintf\n", 0)
		s.expect("unset -f COPROC", "", 0)
		s.run("f() { coproc \\cat; echo in >&${COPROC[1]}; exec {COPROC[1]}>&-; read -r x <&${COPROC[0]}; echo $x; }")
		s.expect("shopt -u expand_aliases", "", 0)
		s.expect("f; shopt -q expand_aliases || echo off", "in\noff\n", 0)
	}
}

func TestSwitchedOffBuiltins(t *testing.T) {
	for _, names := range []string{"cd", "cd echo printf", "declare", "builtin", "trap set", "alias pwd umask",
		"builtin declare printf"} {
		s := open(t, shells[0])
		if r := s.run("V=new; cd /usr; enable -n " + names); !r.kept || r.out != "" || r.err != "" || r.code != 0 {
			t.Fatalf("%s: %+v", names, r)
		}
		s.expect("echo $V $PWD", "new /usr\n", 0)
	}
}

// If a state cannot be kept, the result reports it, and the previous state stays.
func TestALostStateIsTold(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for _, text := range []string{"exec true", "kill -9 $$", "set -n", `rm "$__hx_w"`} {
			s.expect("V=old", "", 0)
			if r := s.run("V=new; " + text); r.kept {
				t.Fatalf("%s: %+v", text, r)
			}
			s.expect("echo $V", "old\n", 0)
		}
	})
	s := open(t, shells[0])
	for _, text := range []string{"enable -n builtin enable declare unset", "builtin trap - EXIT",
		"unset -f __hx_exit"} {
		s.expect("V=old", "", 0)
		if r := s.run("V=new; " + text); r.kept {
			t.Fatalf("%s: %+v", text, r)
		}
		s.expect("echo $V", "old\n", 0)
	}
}

// Aliases change how later text is parsed, not how the wrapper was parsed.
func TestAliasesNamedAsBuiltins(t *testing.T) {
	names := strings.Fields("alias builtin cd declare eval exec exit export printf pwd readonly return set trap " +
		"umask unset")
	eachShell(t, func(t *testing.T, s *tester) {
		for _, name := range names {
			s.expect("V=new; export E=1; alias "+name+"='echo mine'", "", 0)
			s.expect("echo $V $E; "+name, "new 1\nmine\n", 0)
			s.expect("V=newer; \\unalias "+name, "", 0)
			s.expect("echo $V", "newer\n", 0)
		}
	})
}

func TestAliasesOfBraces(t *testing.T) {
	for _, text := range []string{"alias '{'='echo mine'", "alias '}'='echo mine'",
		"alias '{'='echo mine' '}'='echo yours'"} {
		for before, out := range map[string]string{"": "", "trap 'echo $?' EXIT; ": "5\n"} {
			s := open(t, shells[0])
			for range 2 {
				s.expect(before+"V=new; "+text+"; (exit 5)", out, 5)
			}
			s.expect("echo $V; shopt -q expand_aliases && alias | grep -c mine", "new\n1\n", 0)
			s.expect("unalias -a", "", 0)
			s.expect("{ echo $V; }", "new\n", 0)
			s.expect(text+"; shopt -u expand_aliases", "", 0)
			s.expect("shopt -q expand_aliases || { echo off; }", "off\n", 0)
		}
	}
}

// A restricted shell cannot write its state, nor leave the restriction.
func TestRestrictedShells(t *testing.T) {
	s := open(t, shells[0])
	s.expect("V=old", "", 0)
	for text, want := range map[string]result{
		"V=new; set -r; exit 4":                         {code: 4},
		"V=new; set -r; trap 'echo bye' EXIT; (exit 4)": {out: "bye\n", code: 4},
		"V=new; trap 'echo $V' EXIT; set -r":            {out: "new\n"},
		"set -r; trap 'echo usr' USR1; kill -USR1 $$":   {out: "usr\n"},
		"set -x; set -r; trap 'echo bye' EXIT": {out: "bye\n",
			err: "+ set -r\n+ trap 'echo bye' EXIT\n+ echo bye\n"},
	} {
		if r := s.run(text); r != want {
			t.Errorf("%s: %+v, expected %+v", text, r, want)
		}
		s.expect("echo $V $-", "old hBc\n", 0)
	}
}

func TestVerboseShowsNoneOfTheFunctions(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for range 2 {
			r := s.run("set -v\nV=new")
			if lines := strings.Count(r.err, "\n"); !r.kept || strings.Contains(r.err, "()") || lines > 4 {
				t.Fatalf("%+v", r)
			}
		}
		if r := s.run("set +v; echo $V"); r.out != "new\n" {
			t.Fatalf("%+v", r)
		}
	})
}

func TestLargeStates(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect(`V=0123456789abcdef; i=0; while [ $i -lt 17 ]; do V=$V$V; i=$((i+1)); done; echo ${#V}`, "2097152\n",
			0)
		s.expect(`echo ${#V}; V=${V#????}`, "2097152\n", 0)
		s.expect(`echo ${#V}`, "2097148\n", 0)
	})
}

func TestOldOptionsAndModes(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for _, text := range []string{"set -u", "set -e", "set -f", "set -C", "set -a", "set -b",
			"set -x; exec 2>/dev/null"} {
			if r := s.run("V=new; " + text); !r.kept {
				t.Fatalf("%s: %+v", text, r)
			}
			r := s.run("set +eufCabx; echo $V")
			if r.out != "new\n" || !r.kept {
				t.Fatalf("%s: %+v", text, r)
			}
		}
	})
	s := open(t, shells[0])
	s.expect("set -o posix; V=1", "", 0)
	s.expect("trap 'echo bye' EXIT; V=2", "bye\n", 0)
	s.expect("echo $V; shopt -qo posix && set +o posix", "2\n", 0)
	s.expect("shopt -qo posix || echo $V; export POSIXLY_CORRECT=1", "2\n", 0)
	s.expect("shopt -qo posix && env | grep -c POSIXLY", "1\n", 0)
	s.expect("unset POSIXLY_CORRECT; f() { echo 'a b'; }", "", 0)
	s.expect("shopt -s extdebug; V=3", "", 0)
	s.expect("echo $V; f", "3\na b\n", 0)
	s.expect("export COLUMNS=77 COMP_DIR=x BASH_ENV=/nowhere BASH_MINE=5", "", 0)
	s.expect("echo $COLUMNS $COMP_DIR $BASH_ENV $BASH_MINE", "77 x /nowhere 5\n", 0)
}

func TestDirectoriesThatAreGone(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		gone := filepath.Join(s.dir, "gone")
		if r := s.run(fmt.Sprintf("mkdir %s; cd %[1]s; rmdir %[1]s; V=new", quote(gone))); !r.kept || r.code != 0 {
			t.Fatalf("%+v", r)
		}
		if s.state.Cwd() != gone {
			t.Fatal(s.state.Cwd())
		}
		if err := os.Mkdir(gone, 0o700); err != nil {
			t.Fatal(err)
		}
		s.expect("echo $V; cd /", "new\n", 0)
	})
}

// A shell that is ended inside a function still shows the function's variables.
func TestVariablesOfAFunctionThatEndsTheShell(t *testing.T) {
	s := open(t, shells[0])
	const functions = `g() { local v=inner z=5 IFS=: l=(1 2); local -r q=1; local -x GIVEN=hidden; local -A m=([k]=v); h "$@"; }; h() { local v=again; local -n n=v; "$@"; }; `
	if r := s.run(functions + `v=outer; q=global; w=5; a=(1 2); g exit 3`); r.kept || r.code != 3 || r.err != "" {
		t.Fatalf("q is hidden by a readonly variable, and nothing can be known of it: %+v", r)
	}
	s.expect(`echo "$v ${q-} $w ${a[1]} ${n-} ${z-none} ${l-none} ${m-none} $GIVEN"; printf %q "$IFS"; q=free; z=free`,
		"outer  5 2  none none none by the slot\n$' \\t\\n'", 0)
	s.expect(`trap 'echo "$v ${z-}"' EXIT; g exit 4`, "again 5\n", 4)
	s.expect(`echo "$v $q $z ${l-none}"; declare -p w a; g true; echo $v`,
		"outer free free none\ndeclare -- w=\"5\"\ndeclare -a a=([0]=\"1\" [1]=\"2\")\nouter\n", 0)
}

func TestUnsetVariablesOfTheShell(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("unset IFS PATH HOME; V=1", "", 0)
		s.expect("echo ${IFS-none} ${PATH-none} ${HOME-none} $V", "none none none 1\n", 0)
	})
}

func TestVariablesOfADyingFunctionAreNotKept(t *testing.T) {
	s := open(t, shells[0])
	if r := s.run(`die() { local message=$1 HOME=/nowhere; echo "$message"; exit 1; }; V=new; message=mine; die bye`); r.out != "bye\n" || r.code != 1 || !r.kept {
		t.Fatalf("%+v", r)
	}
	s.expect(`echo $V $message $HOME`, "new mine "+s.dir+"\n", 0)
}

// A trap on EXIT runs as without a session.
func TestTrapsAreAsWithoutASession(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for text, want := range map[string]result{
			"trap 'false; echo $?' EXIT; V=new; set -e; false":        {code: 1},
			"trap 'echo code $?' EXIT; V=new; set -eu; exit 7":        {out: "code 7\n", code: 7},
			"trap 'echo bye # comment' EXIT; V=new":                   {out: "bye\n"},
			"trap 'cat <<E\nhi\nE' EXIT; V=new":                       {out: "hi\n"},
			"trap 'cd /; U=late' EXIT; V=new":                         {},
			"trap 'kill -9 $$' EXIT; V=new":                           {code: -1, signal: 9},
			"trap 'exec true' EXIT; V=new":                            {},
			"trap 'f' EXIT; f() { echo in f; return 3; }; V=new":      {out: "in f\n"},
			"printf() { echo P; }; trap 'printf; printf' EXIT; V=new": {out: "P\nP\n"},
		} {
			s.expect("V=old; unset -f printf", "", 0)
			want.kept = true
			if r := s.run(text); r != want {
				t.Fatalf("%s: %+v, expected %+v", text, r, want)
			}
			s.expect("set +eu; echo $V", "new\n", 0)
		}
		s.expect("trap 'cd /; U=late' EXIT", "", 0)
		s.expect("echo $U $PWD", "late /\n", 0)
	})
	s := open(t, shells[0])
	if r := s.run("set -x; trap 'echo bye' EXIT; V=new"); r.out != "bye\n" ||
		r.err != "+ trap 'echo bye' EXIT\n+ V=new\n+ echo bye\n" {
		t.Fatalf("%+v", r)
	}
}

// The tenant can write where the state goes, and only its own state suffers.
func TestATenantThatWritesIntoTheChannel(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect(`V=1; echo junk > "$__hx_w"; printf '\0[\0/etc\n\0' > "$__hx_w"; exec 7> "$__hx_w"; echo more >&7`, "",
			0)
		s.expect("echo $V $PWD", "1 "+s.dir+"\n", 0)
	})
}

func TestFunctionsOfAllShapes(t *testing.T) {
	s := open(t, shells[0])
	s.expect("f() { cat <<'E'\n}\nf () \n{ \nE\ncat <<-X\n\ttab\n\tX\n}; g() { x=$(cat <<E\nin\nE\n); echo $x; }; V=1",
		"", 0)
	s.expect("h() { cat <(echo ps); case $1 in a) echo A ;; *) (echo B) ;; esac; for ((i = 0; i < 2; i++)); do echo "+
		"$i; done; }; a-b() { echo ab; }", "", 0)
	s.expect("f; g; h a; a-b; echo $V", "}\nf () \n{ \ntab\nin\nps\nA\n0\n1\nab\n1\n", 0)
	s.expect("shopt -s extglob\nk() { [[ $1 == +(a|b) ]] && echo match; }; shopt -u extglob", "", 0)
	s.expect(`for i in {1..3000}; do eval "f$i() { echo $i; }"; done`, "", 0)
	s.expect("k aab; f2999", "match\n2999\n", 0)
}
