package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a command does to its descriptors and limits does not cost the state.
func TestDescriptorsAndLimitsOfTheCommand(t *testing.T) {
	for _, text := range []string{
		"exec 2>&-", "exec >&-", "exec >&- 2>&-", "exec >/dev/null 2>&1", "exec 1>&2", "exec </dev/null", "exec 3>/dev/null 4>&1", "exec 9>&-",
		`i=3; while [ $i -lt $last ]; do eval "exec $i>&-"; i=$((i+1)); done`, "ulimit -n 20", "ulimit -f 0", "ulimit -c 0", "umask 777",
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

// A tenant's functions, aliases and switched-off builtins stand between the
// wrapper and what it needs.
func TestFunctionsNamedAsBuiltins(t *testing.T) {
	names := []string{
		"alias", "builtin", "cd", "command", "declare", "enable", "eval", "exec", "exit", "export", "hash", "kill", "local", "printf", "pwd", "read",
		"readonly", "return", "set", "shift", "shopt", "source", "test", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait", "[", ".", ":",
	}
	for _, name := range names {
		s := open(t, shells[0])
		s.expect("V=new; export E=1; shopt -s dotglob; set -o pipefail; alias hi='echo hello'; ok() { echo ok; }; function "+name+" { echo mine; }", "", 0)
		s.expect(`echo "$V $E" $(hi) $(ok) $SHELLOPTS; `+name, "new 1 hello ok braceexpand:hashall:interactive-comments:pipefail\nmine\n", 0)
		s.expect(`V=newer; `+name, "mine\n", 0)
		s.expect(`echo $V; `+name, "newer\nmine\n", 0)
	}
	s := open(t, shells[0])
	s.expect("V=new; "+strings.Join(names, "() { echo mine; }; ")+"() { echo mine; }", "", 0)
	s.expect("echo $V; cd; builtin; declare", "new\nmine\nmine\nmine\n", 0)
	s.expect("echo $V; V=2; set; printf", "new\nmine\nmine\n", 0)
	s.expect("echo $V", "2\n", 0)
}

func TestSwitchedOffBuiltins(t *testing.T) {
	for _, names := range []string{"cd", "cd echo printf", "declare", "builtin", "trap set", "alias pwd umask", "builtin declare printf"} {
		s := open(t, shells[0])
		if r := s.run("V=new; cd /usr; enable -n " + names); !r.kept || r.out != "" || r.err != "" || r.code != 0 {
			t.Fatalf("%s: %+v", names, r)
		}
		s.expect("echo $V $PWD", "new /usr\n", 0)
	}
}

// Where a state cannot be kept, that is told, and the one before it holds.
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
	for _, text := range []string{"enable -n builtin enable declare unset", "builtin trap - EXIT", "unset -f __hx_exit"} {
		s.expect("V=old", "", 0)
		if r := s.run("V=new; " + text); r.kept {
			t.Fatalf("%s: %+v", text, r)
		}
		s.expect("echo $V", "old\n", 0)
	}
}

// Aliases change what is read later, not what the wrapper has been read as.
func TestAliasesNamedAsBuiltins(t *testing.T) {
	names := strings.Fields("alias builtin cd declare eval exec exit export printf pwd readonly return set trap umask unset")
	eachShell(t, func(t *testing.T, s *tester) {
		for _, name := range names {
			s.expect("V=new; export E=1; alias "+name+"='echo mine'", "", 0)
			s.expect("echo $V $E; "+name, "new 1\nmine\n", 0)
			s.expect("V=newer; \\unalias "+name, "", 0)
			s.expect("echo $V", "newer\n", 0)
		}
	})
}

func TestVerboseShowsNoneOfTheFunctions(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for range 2 {
			r := s.run("set -v\nV=new")
			if left := strings.Replace(r.err, "{ __hx_exit; } >/dev/null 2>&1\n", "", 1); !r.kept || strings.Contains(left, "hx") {
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
		s.expect(`V=0123456789abcdef; i=0; while [ $i -lt 17 ]; do V=$V$V; i=$((i+1)); done; echo ${#V}`, "2097152\n", 0)
		s.expect(`echo ${#V}; V=${V#????}`, "2097152\n", 0)
		s.expect(`echo ${#V}`, "2097148\n", 0)
	})
}

func TestOldOptionsAndModes(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for _, text := range []string{"set -u", "set -e", "set -f", "set -C", "set -a", "set -b", "set -x; exec 2>/dev/null"} {
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

func TestFoldersThatAreGone(t *testing.T) {
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
