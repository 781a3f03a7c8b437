package session

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain undoes an ignored SIGHUP, as nohup sets it: child shells would list it among their
// traps. A handled signal has its default action in a child, as for commands of a slot.
func TestMain(m *testing.M) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(m.Run())
}

type result struct {
	out, err string
	code     int
	signal   syscall.Signal
	kept     bool
}

// tester runs commands of one session as the serving runner does.
type tester struct {
	t     testing.TB
	state *State
	dir   string
	files string
}

func fdPath(fd int) string { return fmt.Sprintf("/dev/fd/%d", fd) }

// The path of busybox is where tests/images/busybox.py puts it for the test images.
var shells = []Shell{{Name: "bash", Path: "bash"}, {Name: "dash", Path: "dash"},
	{Name: "busybox", Path: "../../../.cache/busybox"}}

func eachShell(t *testing.T, test func(t *testing.T, s *tester)) {
	for _, shell := range shells {
		t.Run(shell.Name, func(t *testing.T) { test(t, open(t, shell)) })
	}
}

func open(t testing.TB, shell Shell) *tester {
	t.Helper()
	if _, err := os.Stat("../../../tests/images/busybox.py"); err != nil {
		t.Fatal(err)
	}
	found, err := exec.LookPath(shell.Path)
	if err != nil {
		t.Skipf("no %s here: %v", shell.Name, err)
	}
	if found, err = filepath.Abs(found); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8", "GIVEN=by the slot", "odd.name=1"}
	return &tester{t: t, dir: dir, files: t.TempDir(), state: Open(Shell{Name: shell.Name, Path: found}, dir, env)}
}

func (s *tester) with(text string, call Call) result {
	s.t.Helper()
	call.FDPath = fdPath
	var saved *fifo
	if call.Save != "" {
		saved = newFIFO(s.t, call.Save)
		defer saved.close()
	}
	p := s.state.Command(text, call)
	cmd := exec.Command(p.Argv[0], p.Argv[1:]...)
	cmd.Env, cmd.Dir = p.Env, p.Cwd
	for i, content := range p.Files {
		name := filepath.Join(s.files, fmt.Sprint("file", i))
		if err := os.WriteFile(name, content, 0o600); err != nil {
			s.t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			s.t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second
	_ = cmd.Run()
	r := result{out: out.String(), err: errs.String()}
	if saved != nil {
		r.kept = s.state.Done(call, saved.all(), "")
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	r.code = status.ExitStatus()
	if status.Signaled() {
		r.signal = status.Signal()
	}
	return r
}

// fifo is read from the start, for a record may be larger than a pipe.
type fifo struct {
	file *os.File
	read chan []byte
}

func newFIFO(t testing.TB, path string) *fifo {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := &fifo{file: file, read: make(chan []byte, 1)}
	go func() {
		var all []byte
		buffer := make([]byte, 64<<10)
		for {
			n, err := file.Read(buffer)
			all = append(all, buffer[:n]...)
			if err != nil || bytes.HasSuffix(all, []byte(end)) {
				f.read <- bytes.TrimSuffix(all, []byte(end))
				return
			}
		}
	}()
	return f
}

// end is what all writes behind the shell.
const end = "\x00end"

func (f *fifo) all() []byte {
	_, _ = f.file.WriteString(end)
	return <-f.read
}

func (f *fifo) close() {
	_ = os.Remove(f.file.Name())
	_ = f.file.Close()
}

// keep is a call that saves.
func (s *tester) keep() Call { return Call{Save: filepath.Join(s.files, "save")} }

func (s *tester) run(text string) result {
	s.t.Helper()
	return s.with(text, s.keep())
}

// expect runs text and compares all that can be seen of it.
func (s *tester) expect(text, out string, code int) {
	s.t.Helper()
	if r := s.run(text); r.out != out || r.code != code || r.err != "" {
		s.t.Fatalf("%s\n→ %q, code %d, signal %v, stderr %q; expected %q, code %d", text, r.out, r.code, r.signal,
			r.err, out, code)
	}
}

func TestBest(t *testing.T) {
	for _, have := range []struct {
		shells   map[string]string
		fallback string
		want     Shell
	}{
		{map[string]string{"bash": "/bin/bash", "dash": "/bin/sh"}, "", Shell{"bash", "/bin/bash"}},
		{map[string]string{"sh": "/bin/sh", "dash": "/usr/bin/dash"}, "", Shell{"dash", "/usr/bin/dash"}},
		{map[string]string{"sh": "/bin/sh", "zsh": "/bin/zsh"}, "", Shell{"sh", "/bin/sh"}},
		{map[string]string{"zsh": "/bin/zsh"}, "/bin/zsh", Shell{"zsh", "/bin/zsh"}},
		{map[string]string{}, "", Shell{}},
	} {
		if shell, ok := BestShell(have.shells, have.fallback); shell != have.want || ok != (shell.Name != "") {
			t.Errorf("%v: %+v %v", have.shells, shell, ok)
		}
	}
}

func TestStateLasts(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("A='one two'; export B=three; cd /; umask 027; alias hi='echo hello'", "", 0)
		s.expect(`echo "$A|$B|$PWD"; umask; hi; sh -c 'echo "$A|$B"'`, "one two|three|/\n0027\nhello\n|three\n", 0)
		s.expect("unset A; unset GIVEN; cd /usr/bin; set -f", "", 0)
		s.expect(`echo "${A-gone} ${GIVEN-gone} $PWD" /*; cd - >/dev/null; pwd; set +f`, "gone gone /usr/bin /*\n/\n",
			0)
		if s.state.Cwd() != "/" {
			t.Fatal(s.state.Cwd())
		}
		s.expect("unalias hi; alias | grep hi; true", "", 0)
		if r := s.run("hi"); r.code != 127 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestHostileValues(t *testing.T) {
	values := []string{
		"line1\nline2", "'", `"`, `'"'"'`, "$(touch pwned)", "`touch pwned`", `\`, `a\nb`, "trailing\n", "\n", " lead",
		"* ? [a]", "a;b&c|d<e>f", "é漢", "\xff\xfe",
		"\x01\x02\x1b[31m", "-n", "=", "x=y", "#no", "~", "!!", "]", "[", "export A=1\nB=2", "\nEVIL=1\n", "$'x'",
		strings.Repeat("long ", 5000),
	}
	eachShell(t, func(t *testing.T, s *tester) {
		for _, value := range values {
			s.expect("V="+quote(value)+"; export X="+quote(value)+"; readonly -p >/dev/null; W=$V", "", 0)
			s.expect(`[ "$V" = `+quote(value)+` ] && [ "$X" = `+quote(value)+` ] && [ "$W" = "$V" ] && [ -z "${EVIL-}" ] && echo same`, "same\n", 0)
			s.expect("alias x="+quote(value), "", 0)
			s.expect(`[ "$V" = `+quote(value)+` ] && echo same`, "same\n", 0)
		}
		if _, err := os.Stat(filepath.Join(s.dir, "pwned")); err == nil {
			t.Fatal("a value was executed")
		}
	})
}

func TestHostileDirectories(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for _, name := range []string{"new\nline", "trail\n", "-dash", "sp ace", "quo'te", "\xff", "$(x)"} {
			s.expect("cd "+quote(s.dir)+" && mkdir -- "+quote(name)+" && cd -- "+quote(name), "", 0)
			if want := filepath.Join(s.dir, name); s.state.Cwd() != want {
				t.Fatalf("%q, expected %q", s.state.Cwd(), want)
			}
			s.expect(`printf %s "$PWD"`, filepath.Join(s.dir, name), 0)
		}
		s.expect("cd .. && ln -s /usr/bin link && cd link", "", 0)
		s.expect("pwd; cd ..; pwd", filepath.Join(s.dir, "link")+"\n"+s.dir+"\n", 0)
	})
}

// Every way for a command to end.
func TestEndings(t *testing.T) {
	cases := []struct {
		name, text, out string
		code            int
		keeps           bool
	}{
		{"success", "V=new; true", "", 0, true},
		{"failure", "V=new; false", "", 1, true},
		{"exit", "V=new; exit 42", "", 42, true},
		{"exit 255", "V=new; exit 255", "", 255, true},
		{"exit in a function", "f() { exit 3; }; V=new; f; echo no", "", 3, true},
		{"exit in a subshell", "V=new; (exit 5)", "", 5, true},
		{"set -e", "V=new; set -e; false; echo no", "", 1, true},
		{"set -e in a pipeline", "V=new; set -e; true | false; echo no", "", 1, true},
		{"missing program", "V=new; exec 2>/dev/null; no-such-program-here", "", 127, true},
		{"exec redirections", "V=new; exec 3>/dev/null 4>&1 5>&1; echo x >&3", "", 0, true},
		{"exec", "V=new; exec sh -c 'echo other; exit 9'", "other\n", 9, false},
		{"killed", "V=new; kill -9 $$", "", -1, false},
		{"exit trap", "V=new; trap 'echo bye' EXIT; exit 6", "bye\n", 6, true},
		{"exit trap at the end", "V=new; trap 'echo bye; W=trap' EXIT; false", "bye\n", 1, true},
		{"exit trap that exits", "V=new; trap 'echo bye; exit 8' EXIT; exit 6", "bye\n", 8, true},
		{"exit trap that looks", "V=new; trap 'echo $?' 0; exit 6", "6\n", 6, true},
		{"exit trap taken back", "V=new; trap 'echo bye' EXIT; trap - EXIT; exit 6", "", 6, true},
		{"exit trap and others", "V=new; trap 'echo both' EXIT INT; kill -INT $$; exit 6", "both\nboth\n", 6, true},
		{"trap of a subshell", "V=new; (trap 'echo sub' EXIT; echo in); echo out", "in\nsub\nout\n", 0, true},
		{"trap in a function", "V=new; f() { trap 'echo bye' EXIT; }; f; echo out", "out\nbye\n", 0, true},
		{"trap -- ", "V=new; trap -- 'echo bye' EXIT", "bye\n", 0, true},
		{"other trap", "V=new; trap 'echo usr' USR1; kill -USR1 $$; exit 2", "usr\n", 2, true},
		{"background child", "V=new; sleep 60 >/dev/null 2>&1 & echo started", "started\n", 0, true},
		{"two lines", "V=new\ntrue\nexit 4\n", "", 4, true},
		{"heredoc", "V=new; cat <<'E'\ntext $x\nE", "text $x\n", 0, true},
		{"comment at the end", "V=new # comment", "", 0, true},
		{"open line", "V=new; echo a \\", "a \\\n", 0, true},
	}
	eachShell(t, func(t *testing.T, s *tester) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				s.t = t
				s.expect("V=old; W=; trap - EXIT; set +e", "", 0)
				r := s.run(c.text)
				if r.out != c.out || r.code != c.code || r.err != "" {
					t.Fatalf("%+v", r)
				}
				want := "old"
				if c.keeps {
					want = "new"
				}
				if r.kept != c.keeps {
					t.Fatalf("kept: %v", r.kept)
				}
				s.expect(`set +e; echo "$V"`, want+"\n", 0)
			})
		}
	})
}

func TestSyntaxError(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("V=old", "", 0)
		r := s.run("if then fi")
		if r.code == 0 || !strings.Contains(r.err, "yntax") || strings.Contains(r.err, "__hx") ||
			strings.Contains(r.err, "eval") {
			t.Fatalf("%+v", r)
		}
		s.expect(`echo "$V"`, "old\n", 0)
	})
}

func TestOptionsLast(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("set -u; set -C", "", 0)
		r := s.run("echo $UNSET_HERE; echo not reached")
		if r.code == 0 || r.out != "" {
			t.Fatalf("%+v", r)
		}
		s.expect("set +u; touch f; exec 2>/dev/null; (echo x > f) || echo refused; set +C", "refused\n", 0)
		s.expect("set -x", "", 0)
		r = s.run("echo traced")
		if r.out != "traced\n" || r.err != "+ echo traced\n" {
			t.Fatalf("%+v", r)
		}
		if r = s.run("set +x"); r.err != "+ set +x\n" {
			t.Fatalf("%+v", r)
		}
		s.expect("set -e", "", 0)
		s.expect("false; echo no", "", 1)
		s.expect("set +e", "", 0)
		s.expect("false; echo yes", "yes\n", 0)
	})
}

func TestReadonly(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("readonly R=1", "", 0)
		for range 2 {
			r := s.run("echo $R; (R=2) 2>/dev/null || echo refused")
			if r.out != "1\nrefused\n" || r.err != "" {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func TestChangedIFSAndPath(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("IFS=0a/; A='x y'; PATH=/nowhere", "", 0)
		s.expect(`echo "$PATH $A"; set -- $PATH; echo $#`, "/nowhere x y\n2\n", 0)
		s.expect("trap 'echo bye' EXIT; exit 3", "bye\n", 3)
	})
}

func TestCallEnvironmentIsOfOneCall(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for range 2 {
			call := s.keep()
			call.Env = map[string]string{"GIVEN": "it's", "FRESH": "2"}
			r := s.with(`echo "$GIVEN $FRESH"; sh -c 'echo "$GIVEN $FRESH"'`, call)
			if r.out != "it's 2\nit's 2\n" || r.err != "" {
				t.Fatalf("%+v", r)
			}
			s.expect(`echo "$GIVEN ${FRESH-none}"; sh -c 'echo "$GIVEN"'`, "by the slot none\nby the slot\n", 0)
		}
	})
}

func TestWithoutKeeping(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("A=1; alias hi='echo hello'; cd /", "", 0)
		if r := s.with(`echo $A $PWD; hi; A=2; cd /usr; exit 3`, Call{}); r.out != "1 /\nhello\n" || r.code != 3 ||
			r.err != "" {
			t.Fatalf("%+v", r)
		}
		s.expect("echo $A $PWD", "1 /\n", 0)
	})
}

func TestNothingOfOursIsSeen(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("set | grep -c '^__hx_c='; env | grep __hx; ls -l /dev/fd/ 2>/dev/null | grep -c 'file[02]'; env | "+
			"grep BASH_ENV; true", "0\n0\n", 0)
		s.expect(`echo "$#" "$@"`, "0\n", 0)
		if r := s.run("nosuch-x"); strings.Contains(r.err, "__hx") || strings.Contains(r.err, "fd/3") {
			t.Fatalf("%+v", r)
		}
	})
}

func TestLongText(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("x='"+strings.Repeat("y'\\''z", 30<<10)+"'; echo ${#x}; A=kept", fmt.Sprintln(3*30<<10), 0)
		s.expect("echo $A", "kept\n", 0)
	})
}

func TestBash(t *testing.T) {
	s := open(t, shells[0])
	s.expect(`declare -A m=([a b]=1 [$'x\ny']=2); l=(1 "2 3"); declare -i n=4; declare -n ref=n; f() { echo "in f $1"; }; export -f f; a-b() { cat <<E
here $1
E
}; shopt -s extglob nullglob; g() { [[ $1 == @(x|y) ]]; }`, "", 0)
	s.expect(`echo "${m[a b]} ${m[$'x\ny']} ${#l[@]} ${l[1]} $((n+1)) $ref"; n=2+3; echo $n; f x; bash -c 'f y'; a-b z; g y && echo glob; echo /none*`,
		"1 2 2 2 3 5 4\n5\nin f x\nin f y\nhere z\nglob\n\n", 0)
	s.expect("shopt -u nullglob; unset -f f; unset m", "", 0)
	s.expect(`echo "${m-gone}" /none*; type f 2>/dev/null || echo no f`, "gone /none*\nno f\n", 0)
	s.expect(`function if { echo never; }; declare() { echo mine; }; printf() { echo mine; }; cd() { builtin cd "$@" && echo moved; }; V=1`, "", 0)
	s.expect("echo $V; declare; cd /; unset -f cd declare printf if", "1\nmine\nmoved\n", 0)
	s.expect("alias ll='echo listed' ls=nothing\nll", "listed\n", 0)
	s.expect("f() { ll; }; f", "listed\n", 0)
	s.expect("f; unalias ll; f", "listed\nlisted\n", 0)
	s.expect("set -o pipefail; shopt -s dotglob; set -E -T", "", 0)
	s.expect("true | false | true; echo $?; shopt -q dotglob && echo dot; set +E +T; trap 'echo debug' DEBUG",
		"1\ndot\n", 0)
	s.expect("echo on", "on\n", 0)
	s.expect("trap 'echo err' ERR; trap 'echo debug' DEBUG; false; V=2", "debug\ndebug\nerr\ndebug\n", 0)
	const over = `'echo "it'\''s over"' EXIT`
	s.expect("echo $V; trap "+over+"; trap; trap -p EXIT", "2\ntrap -- "+over+"\ntrap -- "+over+"\nit's over\n", 0)
	s.expect("x=1; f() { local y=2; exit 7; }; f", "", 7)
	s.expect("set -o posix; P=1", "", 0)
	s.expect("shopt -qo posix && echo $P; set +o posix", "1\n", 0)
	s.expect("echo `seq 3` $(trap 'echo sub' EXIT) {1..3}", "1 2 3 sub 1 2 3\n", 0)
	s.expect("env | grep -x odd.name=1; nosuch 2>&1; exit 0",
		"odd.name=1\n"+s.state.shell.Path+": line 1: nosuch: command not found\n", 0)
	if keeps := s.state.shell.Keeps(); !slices.Contains(keeps, "functions") {
		t.Fatal(keeps)
	}
}

func TestTerminatedShellKeepsItsStatusAndState(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		if r := s.run("V=new; cd /; kill -TERM $$; V=newer; sleep 5"); r.signal != syscall.SIGTERM || r.err != "" {
			t.Fatalf("%+v", r)
		}
		s.expect(`echo "$V"; pwd`, "new\n/\n", 0)
		// As at a timeout: all processes get the signal while the shell waits for a program.
		if r := s.run("V=next; set -eu; (sleep 0.1; kill -TERM $$) & sleep 1.5; V=no"); r.signal != syscall.SIGTERM {
			t.Fatalf("%+v", r)
		}
		s.expect(`set +e; echo "$V"`, "next\n", 0)
		s.expect("trap '' TERM; kill -TERM $$; echo deaf", "deaf\n", 0)
		s.expect("trap 'echo mine' TERM; kill -TERM $$; (kill -TERM $$); echo on", "mine\nmine\non\n", 0)
		if r := s.run("trap - TERM; (exec sh -c 'kill -TERM $$'); echo $?"); r.out != "143\n" {
			t.Fatalf("%+v", r)
		}
	})
}

func TestForgedRecords(t *testing.T) {
	for _, wrote := range []string{"", "\x00", "\x00]", "\x00[", "\x00[\x00/\n\x00", "\x00[\x00a\x00]", "[\x00]",
		"\x00[\x00]", "\x00[\x00\x00\x00\x00]", "\x00[\x00/x\n\x00\x00\x00\x00\x00\x00\x00\x00]x"} {
		for _, shell := range shells {
			s := Open(shell, "/was", []string{"A=1"})
			if kept := s.Done(Call{}, []byte(wrote), "/now"); s.saved == nil && (kept || s.Cwd() != "/now") {
				t.Fatalf("%q: %q", wrote, s.Cwd())
			}
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte("\x00[\x00/\n\x00text\x00eu\x00set -o errexit\n\x00]"))
	f.Add([]byte("\x00[\x00/\n\x00e\x00set +o x\n\x000022\n\x00A='b'\nC='d'\\''e'\n\x00export A='b'\n\x00readonly " +
		"A\n\x00x='y'\n\x00]"))
	f.Fuzz(func(t *testing.T, wrote []byte) {
		for _, shell := range shells {
			s := Open(shell, "/was", []string{"A=1"})
			s.Done(Call{Env: map[string]string{"A": "2"}}, wrote, "")
			if s.saved == nil {
				continue
			}
			// Those of bash end with its functions, which are its own text.
			options := strings.TrimSuffix(s.saved.options, "\n")
			if shell.Name != "bash" && strings.ContainsAny(options, "$`()&|<>\n'\"") {
				t.Fatalf("%q", s.saved.options)
			}
		}
	})
}

func BenchmarkShell(b *testing.B) {
	for _, shell := range shells {
		s := open(b, shell)
		s.run("A=1; f() { echo; }")
		b.Run(shell.Name+"/session", func(b *testing.B) {
			for range b.N {
				s.run(":")
			}
		})
		b.Run(shell.Name+"/bare", func(b *testing.B) {
			for range b.N {
				argv := []string{s.state.shell.Path, "-c", ":"}
				if shell.Name == "busybox" {
					argv = []string{s.state.shell.Path, "ash", "-c", ":"}
				}
				if err := exec.Command(argv[0], argv[1:]...).Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// checkUnsaved runs text as a background process of the session.
func (s *tester) checkUnsaved(text, out string, code int) {
	s.t.Helper()
	if r := s.with(text, Call{}); r.out != out || r.code != code || r.err != "" {
		s.t.Fatalf("%s\n→ %q, code %d, stderr %q; expected %q, code %d", text, r.out, r.code, r.err, out, code)
	}
}

func TestTrapsOfAProcess(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("v=5", "", 0)
		const traps = "trap 'echo cleanup' EXIT; trap 'echo term; exit 3' TERM; echo $v; kill -TERM $$; sleep 1"
		s.checkUnsaved(traps, "5\nterm\ncleanup\n", 3)
		if s.state.shell.Name == "bash" {
			s.expect("set -o posix", "", 0)
			s.checkUnsaved(traps, "5\nterm\ncleanup\n", 3)
			s.expect("set +o posix", "", 0)
			s.expect("trap() { echo mine; }", "", 0)
			s.checkUnsaved("trap; echo $v", "mine\n5\n", 0)
		}
	})
}

func TestPOSIXModeByEnvironment(t *testing.T) {
	s := open(t, shells[0])
	s.expect("x=1; cd /; f() { echo in f; }", "", 0)
	strict := s.keep()
	strict.Env = map[string]string{"POSIXLY_CORRECT": "1"}
	const text = `echo $x $PWD $POSIXLY_CORRECT; shopt -qo posix && echo strict; trap 'echo bye' EXIT; f; y=2`
	if r := s.with(text, strict); r.out != "1 / 1\nstrict\nin f\nbye\n" || r.err != "" || !r.kept {
		t.Fatalf("%+v", r)
	}
	s.expect(`echo $x $y ${POSIXLY_CORRECT-unset} ${BASH_ENV-unset}; shopt -qo posix || echo lax`, "1 2 unset unset\nlax\n", 0)
	s.expect("POSIXLY_CORRECT=mine", "", 0)
	if r := s.with("echo $POSIXLY_CORRECT", strict); r.out != "1\n" {
		t.Fatalf("%+v", r)
	}
	s.expect("echo $POSIXLY_CORRECT", "mine\n", 0)

	s = open(t, shells[0])
	s.state.env = append(s.state.env, "POSIXLY_CORRECT=1")
	s.expect("x=1; cd /; trap 'echo bye' EXIT", "bye\n", 0)
	s.expect(`echo $x $PWD $POSIXLY_CORRECT ${BASH_ENV-unset}; sh -c 'echo $POSIXLY_CORRECT'; shopt -qo posix && echo strict`, "1 / 1 unset\n1\nstrict\n", 0)
	s.checkUnsaved("echo $x $POSIXLY_CORRECT; trap 'echo bye' EXIT", "1 1\nbye\n", 0)
}

func TestReadonlyNamesAreTheTenants(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("for n in action rest mine sig all q i j; do readonly $n=set; done; readonly BARE IFS; export BARE", "", 0)
		s.expect("trap 'echo bye' EXIT; trap 'echo usr' USR1; kill -USR1 $$; echo $action $mine", "usr\nset set\nbye\n", 0)
		if r := s.run("BARE=1; echo on"); strings.Contains(r.out, "on") && s.state.shell.Name != "bash" {
			t.Errorf("a variable without a value is readonly no more: %+v", r)
		}
		call := s.keep()
		call.Env = map[string]string{"action": "of the call", "other": "of the call"}
		if r := s.with("echo $action, $other", call); r.out != "set, of the call\n" || r.code != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestAFunctionThatEndsAShellOfManyVariables(t *testing.T) {
	s := open(t, shells[0])
	s.expect("for i in {1..3000}; do declare z$i=$i; done", "", 0)
	s.expect("f() { x=3; exit 7; }; f", "", 7)
	s.expect("echo $x $z3000", "3 3000\n", 0)
}

func TestLongTextWithAllexport(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		s.expect("set -a", "", 0)
		s.expect("/bin/true && echo on; exported=1; : "+strings.Repeat("x", 200_000), "on\n", 0)
		s.expect("sh -c 'echo $exported ${__hx_c-none}'", "1 none\n", 0)
	})
}

func TestAttributesDoNotChangeValues(t *testing.T) {
	s := open(t, shells[0])
	s.expect(`low=ABC; declare -l low; up=abc; declare -xu up; n=08; declare -i n; e='a[$(touch pwned)]'; declare -ir e; arr=(x 'y z'); declare -i arr`, "", 0)
	s.expect(`echo "$low $up $n ${arr[1]}"; low=ABC up=abc n=2+3; echo "$low $up $n"; sh -c 'echo $up'; [ "$e" = 'a[$(touch pwned)]' ] && echo same`,
		"ABC abc 08 y z\nabc ABC 5\nABC\nsame\n", 0)
	s.expect("GLOBIGNORE=zzz; shopt -u dotglob", "", 0)
	s.expect("shopt -q dotglob || echo off; echo $GLOBIGNORE", "off\nzzz\n", 0)
	if _, err := os.Stat(filepath.Join(s.dir, "pwned")); err == nil {
		t.Error("a value was executed")
	}
}

func TestGlobIgnoreSwitchesDotglob(t *testing.T) {
	s := open(t, shells[0])
	s.expect("mkdir files; cd files; touch .hidden shown x; GLOBIGNORE=x", "", 0)
	s.expect("echo *", ".hidden shown\n", 0)
	s.expect("unset GLOBIGNORE", "", 0)
	s.expect("echo *; GLOBIGNORE=x; shopt -u dotglob", "shown x\n", 0)
	s.expect("echo *; shopt -s dotglob", "shown\n", 0)
	s.expect("echo *; unset GLOBIGNORE; echo *", ".hidden shown\nshown x\n", 0)
}

func TestKeywordsInPosixMode(t *testing.T) {
	s := open(t, shells[0])
	s.expect("set -k; POSIXLY_CORRECT=y", "", 0)
	s.expect("sh -c 'echo on $A' A=1; set +k", "on 1\n", 0)
	s.expect("echo $POSIXLY_CORRECT; sh -c 'echo off $A' A=1", "y\noff\n", 0)
}

func TestNamesThatAreSpecialElsewhere(t *testing.T) {
	for _, shell := range shells[1:] {
		t.Run(shell.Name, func(t *testing.T) {
			s := open(t, shell)
			s.expect("UID=7; GROUPS=a; SECONDS=9; EUID=8; BASH_FOO=1; BASH=q; export BASH_ENV=x", "", 0)
			s.expect("echo $UID $GROUPS $SECONDS $EUID $BASH_FOO $BASH; sh -c 'echo $BASH_ENV'", "7 a 9 8 1 q\nx\n", 0)
		})
	}
}

func TestOddNamesAndTextsThatBeginLikeOptions(t *testing.T) {
	eachShell(t, func(t *testing.T, s *tester) {
		for range 2 {
			call := s.keep()
			call.Env = map[string]string{"a.b": "of the call", "odd.name": "2"}
			r := s.with("env | grep -e '^a.b=' -e '^odd.name=' | sort", call)
			want := "" // dash and busybox pass on only names that they accept as variables
			if s.state.shell.Name == "bash" {
				want = "a.b=of the call\nodd.name=2\n"
			}
			if r.out != want {
				t.Errorf("%+v", r)
			}
			for _, text := range []string{"-x; echo on", "+e; echo on", "--version; echo on"} {
				if r := s.run(text); r.out != "on\n" || !r.kept {
					t.Errorf("%s: %+v", text, r)
				}
			}
		}
	})
}
