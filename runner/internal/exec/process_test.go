package exec_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/testdriver"
)

func TestProcess(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "echo ready; while read line; do echo got $line; done; echo over >&2; exit 4")
	p["stdin"], p["tag"] = true, "mine"
	id, pid := d.Spawn(p)
	if pid <= 0 {
		t.Fatal(pid)
	}
	var w struct{ Written int64 }
	k := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
	k.Send([]byte("one\ntwo\n"), true)
	if err := k.Finish(&w); err != nil || w.Written != 8 {
		t.Fatal(err, w)
	}
	var none struct{ Exit *testdriver.Exit }
	d.Call("proc.wait", testdriver.Params{"process": id, "timeout_s": 0.05}, &none)
	if none.Exit != nil {
		t.Fatalf("%+v", none)
	}
	var list struct {
		Processes []struct {
			Process, Command, Tag string
			PID                   int
			PTY                   bool
			Exit                  *testdriver.Exit
			StdoutBytes           int64 `json:"stdout_bytes"`
		}
	}
	d.Call("proc.list", testdriver.Params{"slot": "s"}, &list)
	if len(list.Processes) != 1 || list.Processes[0].Tag != "mine" || list.Processes[0].PID != pid ||
		list.Processes[0].Exit != nil || list.Processes[0].Command != p["shell"] {
		t.Fatalf("%+v", list)
	}
	d.Call("proc.close_stdin", testdriver.Params{"process": id}, nil)
	if e := d.Wait(id); e.ExitCode != 4 || e.Stdout.Total != 22 || e.Stderr.Total != 5 {
		t.Fatalf("%+v", e)
	}
	out, r := d.Log(id, 1, 0, 1000)
	if string(out) != "ready\ngot one\ngot two\n" || r["end"] != true || r["next_offset"] != 22.0 {
		t.Fatalf("%q %v", out, r)
	}
	if out, r = d.Log(id, 1, -8, 4); string(out) != "got " || r["offset"] != 14.0 || r["end"] != false {
		t.Fatalf("%q %v", out, r)
	}
	if out, _ = d.Log(id, 2, 0, 100); string(out) != "over\n" {
		t.Fatalf("%q", out)
	}
	d.Fails("bad_request", "proc.write", testdriver.Params{"process": id})
	d.Fails("bad_request", "proc.read", testdriver.Params{"process": id, "stream": 3, "offset": 0, "limit": 1})
	d.Fails("no_process", "proc.read", testdriver.Params{"process": "p999", "stream": 1, "offset": 0, "limit": 1})
}

func TestProcessThatCannotStart(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	id, _ := d.Spawn(testdriver.Params{"slot": "s", "argv": []string{"no-such-program"}})
	if e := d.Wait(id); e.ExitCode != 127 || e.Started {
		t.Fatalf("%+v", e)
	}
	if out, _ := d.Log(id, 2, 0, 1000); !strings.Contains(string(out), "no-such-program") {
		t.Fatalf("%q", out)
	}
	d.Fails("os", "proc.spawn", testdriver.Params{"slot": "s", "argv": []string{"true"}, "cwd": "/missing"})
}

func TestProcessLogIsLongerThanMemory(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	const size = 80 << 20
	p := testdriver.Shell("s", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' 'a'; printf END", size))
	id, _ := d.Spawn(p)
	if e := d.Wait(id); e.Stdout.Total != size+3 {
		t.Fatalf("%+v", e)
	}
	out, r := d.Log(id, 1, 0, 1000)
	first := int64(r["offset"].(float64))
	if want := int64(size + 3 - 64<<20); first < want || first > want+1<<20 || len(out) != 1000 ||
		string(bytes.Trim(out, "a")) != "" {
		t.Fatalf("%v %d", r, len(out))
	}
	if out, r = d.Log(id, 1, -3, 1000); string(out) != "END" || r["end"] != true {
		t.Fatalf("%q %v", out, r)
	}
	if out, r = d.Log(id, 1, size-1<<20, 2<<20); len(out) != 1<<20+3 || r["end"] != true ||
		!bytes.HasSuffix(out, []byte("aaaEND")) {
		t.Fatalf("%d %v", len(out), r)
	}
}

func TestFollowerSlowsTheProcessAndLosesNothing(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	const size = 150 << 20
	p := testdriver.Shell("s", fmt.Sprintf("read go; head -c %d /dev/zero; printf END", size))
	p["stdin"] = true
	id, _ := d.Spawn(p)
	k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.Mu.Lock()
	k.Manual = true
	k.Mu.Unlock()
	w := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
	w.Send([]byte("go\n"), true)
	if err := w.Finish(nil); err != nil {
		t.Fatal(err)
	}
	k.Until("a full window", func() bool { return k.Position >= 1<<20 })
	var none struct{ Exit *testdriver.Exit }
	d.Call("proc.wait", testdriver.Params{"process": id, "timeout_s": 0.5}, &none)
	if none.Exit != nil {
		t.Fatal("the process did not wait for its reader")
	}
	k.Mu.Lock()
	k.Manual = false
	k.Grant()
	k.Mu.Unlock()
	var r struct {
		Next int64 `json:"next_offset"`
		Lost int64 `json:"lost_bytes"`
	}
	if err := k.Finish(&r); err != nil || r.Next != size+3 || r.Lost != 0 || len(k.Bytes(1)) != size+3 ||
		!bytes.HasSuffix(k.Bytes(1), []byte("END")) {
		t.Fatal(err, r, len(k.Bytes(1)))
	}
	if e := d.Wait(id); e.ExitCode != 0 {
		t.Fatalf("%+v", e)
	}
}

func TestFollowCanBeCalledOff(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	id, _ := d.Spawn(testdriver.Shell("s", "echo one; sleep 1000"))
	k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.Until("output", func() bool { return k.Data[1] != nil })
	k.Cancel()
	var r struct {
		Next int64 `json:"next_offset"`
	}
	if err := k.Finish(&r); err != nil || r.Next != 4 {
		t.Fatal(err, r)
	}
}

func TestSignalAndKill(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	id, _ := d.Spawn(testdriver.Shell("s", "trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.02; done"))
	k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.Until("the start", func() bool { return k.Data[1] != nil })
	d.Call("proc.signal", testdriver.Params{"process": id, "signal": 10}, nil)
	if e := d.Wait(id); e.ExitCode != 9 {
		t.Fatalf("%+v", e)
	}
	if err := k.Finish(nil); err != nil || string(k.Bytes(1)) != "ready\nusr1\n" {
		t.Fatal(err)
	}
	id, _ = d.Spawn(testdriver.Shell("s", "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo ready; wait"))
	k = d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.Until("the start", func() bool { return k.Data[1] != nil })
	var r struct {
		Killed struct{ Found, Killed, Left int }
	}
	d.Call("proc.kill", testdriver.Params{"process": id}, &r)
	if r.Killed.Found < 2 || r.Killed.Left != 0 {
		t.Fatalf("%+v", r)
	}
	if e := d.Wait(id); e.ExitCode < 128 {
		t.Fatalf("%+v", e)
	}
	d.Fails("bad_request", "proc.signal", testdriver.Params{"process": id, "signal": 0})
}

func TestTerminal(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", `test -t 0 && test -t 1 && test -t 2 && stty size; read line; echo "got $line"; stty size; cat; echo end`)
	p["pty"] = map[string]int{"rows": 33, "cols": 77}
	id, _ := d.Spawn(p)
	k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	sees := func(text string) func() bool {
		return func() bool { return k.Data[1] != nil && strings.Contains(k.Data[1].String(), text) }
	}
	k.Until("the size", sees("33 77"))
	d.Call("proc.resize", testdriver.Params{"process": id, "rows": 44, "cols": 88}, nil)
	w := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
	w.Send([]byte("hello\n"), true)
	if err := w.Finish(nil); err != nil {
		t.Fatal(err)
	}
	k.Until("the new size", sees("44 88"))
	d.Call("proc.close_stdin", testdriver.Params{"process": id}, nil)
	if err := k.Finish(nil); err != nil || !strings.Contains(string(k.Bytes(1)), "got hello\r\n") ||
		!strings.HasSuffix(string(k.Bytes(1)), "end\r\n") {
		t.Fatalf("%v %q", err, k.Bytes(1))
	}
	if e := d.Wait(id); e.ExitCode != 0 {
		t.Fatalf("%+v", e)
	}
	d.Fails("bad_request", "proc.resize", testdriver.Params{"process": id, "rows": 0, "cols": 88})
}

// A program in a terminal, and the number of bytes that it reads of a long line.
func TestTerminalPassesOnLongLines(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	const bytewise = `IFS= read -r line; echo ${#line}`
	for name, program := range map[string]string{
		"lines": "echo go; head -n 1 | wc -c", "a shell": "echo go; " + bytewise,
		"late": "echo go; sleep 0.3; head -n 1 | wc -c", "no echo": "stty -echo; echo go; head -n 1 | wc -c",
		"other end":          "stty eof '^Y'; echo go; head -n 1 | wc -c",
		"no carriage return": "stty -icrnl; echo go; head -n 1 | wc -c",
		"raw":                "stty raw -echo; echo go; head -c 12001 | wc -c",
		"raw and late":       "stty raw -echo; echo go; sleep 0.3; head -c 12001 | wc -c",
		"then raw":           "stty -echo; echo go; head -n 1 | wc -c; stty raw; echo again; head -c 12001 | wc -c",
	} {
		p := testdriver.Shell("s", program)
		p["pty"] = map[string]int{"rows": 33, "cols": 77}
		id, _ := d.Spawn(p)
		k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
		until := func(text string) {
			k.Until("the program", func() bool { return k.Data[1] != nil && strings.Contains(k.Data[1].String(), text) })
		}
		until("go")
		want := map[bool]string{true: "12000", false: "12001"}[name == "a shell"]
		write := func(sizes ...int) {
			w := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
			for _, size := range sizes {
				w.Send(bytes.Repeat([]byte("x"), size), false)
			}
			w.Send([]byte("\n"), true)
			var written struct{ Written int }
			if err := w.Finish(&written); err != nil || written.Written != 12001 {
				t.Errorf("%s: %v %v", name, err, written)
			}
		}
		write(12000)
		if name == "then raw" {
			until("again")
			write(4000, 4000, 4000)
		}
		if err := k.Finish(nil); err != nil || strings.Count(string(k.Bytes(1)), "\n"+want) == 0 {
			t.Errorf("%s: %v %.300q", name, err, k.Bytes(1)[max(0, len(k.Bytes(1))-300):])
		}
		d.Wait(id)
	}
}

func TestTerminalCountsUnfinishedLineOverWrites(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "stty -echo; echo ready; wc -lc")
	p["pty"] = map[string]int{"rows": 33, "cols": 77}
	id, _ := d.Spawn(p)
	k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.Until("the program", func() bool { return k.Data[1] != nil && strings.Contains(k.Data[1].String(), "ready") })
	for _, text := range []string{strings.Repeat("a", 3000), strings.Repeat("b", 1094), "\n", strings.Repeat("é", 9000),
		strings.Repeat("c\n", 5000), strings.Repeat("\t", 4093), "\x7f\x7f", strings.Repeat("d", 5000)} {
		w := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
		w.Send([]byte(text), true)
		if err := w.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	d.Call("proc.close_stdin", testdriver.Params{"process": id}, nil)
	if err := k.Finish(nil); err != nil || !slices.Equal(strings.Fields(string(k.Bytes(1)))[1:], []string{"5001", "41186"}) {
		t.Errorf("%v %q", err, k.Bytes(1))
	}
	p = testdriver.Shell("s", "stty eof undef; echo ready; wc -c")
	p["pty"] = map[string]int{"rows": 33, "cols": 77}
	id, _ = d.Spawn(p)
	k = d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.Until("the program", func() bool { return k.Data[1] != nil && strings.Contains(k.Data[1].String(), "ready") })
	w := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
	w.Send(bytes.Repeat([]byte("x"), 5000), true)
	if err := w.Finish(nil); err == nil || err.Errno != "EMSGSIZE" {
		t.Error(err)
	}
	d.Call("proc.kill", testdriver.Params{"process": id}, nil)
}

func TestTerminalHasTermUnlessItIsSet(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	var s struct{ Session string }
	d.Call("session.open", testdriver.Params{"slot": "s"}, &s)
	term := func(session bool, env testdriver.Params) string {
		t.Helper()
		p := testdriver.Shell("s", `sh -c 'echo "$TERM"'`)
		p["pty"], p["env"] = map[string]int{"rows": 33, "cols": 77}, env
		if session {
			p["session"] = s.Session
		}
		id, _ := d.Spawn(p)
		d.Wait(id)
		out, _ := d.Log(id, 1, 0, 1000)
		return strings.TrimSpace(string(out))
	}
	in := func(text string) {
		p := testdriver.Shell("s", text)
		p["session"] = s.Session
		d.Call("exec.run", p, nil)
	}
	for _, session := range []bool{false, true} {
		if plain, own := term(session, nil), term(session, testdriver.Params{"TERM": "vt100"}); plain != "xterm-256color" ||
			own != "vt100" {
			t.Error(session, plain, own)
		}
	}
	for _, step := range [][2]string{{"a=1", "xterm-256color"}, {"TERM=linux", "xterm-256color"},
		{"export TERM=linux", "linux"}, {"export TERM='a b'", "a b"}, {"unset TERM", "xterm-256color"}} {
		in(step[0])
		if got := term(true, nil); got != step[1] {
			t.Errorf("after %s: %s", step[0], got)
		}
	}
}

func TestTheEndOfInputIsWhatTheTerminalTakesForIt(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	for chosen, said := range map[string]string{"^D": "ended", "^Y": "ended", "undef": "waits"} {
		limit := map[string]string{"ended": "60", "waits": "2"}[said]
		p := testdriver.Shell("s", `stty eof '`+chosen+`' -echo; echo ready; timeout --foreground `+limit+` cat; test $? = 124 && echo waits || echo ended`)
		p["pty"] = map[string]int{"rows": 33, "cols": 77}
		id, _ := d.Spawn(p)
		k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
		k.Until("the settings", func() bool {
			return k.Data[1] != nil &&
				strings.Contains(k.Data[1].String(), "ready")
		})
		d.Call("proc.close_stdin", testdriver.Params{"process": id}, nil)
		if err := k.Finish(nil); err != nil || !strings.HasSuffix(string(k.Bytes(1)), said+"\r\n") {
			t.Errorf("%s: %v %q", chosen, err, k.Bytes(1))
		}
	}
}

func TestAWriteThatIsCalledOffTellsHowFarItCame(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "read go < go; cat | sha256sum")
	p["stdin"] = true
	d.Call("exec.run", testdriver.Shell("s", "mkfifo go"), nil)
	id, _ := d.Spawn(p)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	sent, w := data, struct{ Written int }{}
	for range 3 {
		k, more := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20), sent
		go k.Send(more, true)
		k.Until("some input", func() bool { return k.Sent > 100<<10 })
		k.Cancel()
		if err := k.Finish(&w); err != nil || w.Written >= len(sent) {
			t.Fatal(err, w)
		}
		sent = sent[w.Written:]
	}
	if len(sent) == len(data) || w.Written != 0 { // the pipe was full by then
		t.Fatal(len(sent), w)
	}
	d.Call("exec.run", testdriver.Shell("s", "echo > go"), nil)
	k := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
	k.Send(sent, true)
	if err := k.Finish(&w); err != nil || w.Written != len(sent) {
		t.Fatal(err, w)
	}
	d.Call("proc.close_stdin", testdriver.Params{"process": id}, nil)
	d.Wait(id)
	sum := sha256.Sum256(data)
	if out, _ := d.Log(id, 1, 0, 100); !strings.HasPrefix(string(out), hex.EncodeToString(sum[:])) {
		t.Fatalf("%s is not %x", out, sum)
	}
}

func TestCloseStdinEndsAWriteThatWaits(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "sleep 1000")
	p["stdin"] = true
	id, _ := d.Spawn(p)
	k := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
	go k.Send(make([]byte, 1<<20), true)
	k.Until("some input", func() bool { return k.Sent > 100<<10 })
	d.Call("proc.close_stdin", testdriver.Params{"process": id}, nil)
	if err := k.Finish(nil); err == nil || err.Kind != "bad_request" {
		t.Fatal(err)
	}
	d.Fails("bad_request", "proc.write", testdriver.Params{"process": id})
	d.Call("proc.kill", testdriver.Params{"process": id}, nil)
}

func TestNothingWaitsForATerminalThatReadsNothing(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "stty raw -echo; echo ready; sleep 1000")
	p["pty"] = map[string]int{"rows": 33, "cols": 77}
	id, _ := d.Spawn(p)
	k := d.Begin("proc.follow", testdriver.Params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.Until("the settings", func() bool { return k.Data[1] != nil && strings.Contains(k.Data[1].String(), "ready") })
	w := d.Begin("proc.write", testdriver.Params{"process": id}, 1<<20)
	go w.Send(make([]byte, 1<<20), true)
	w.Until("some input", func() bool { return w.Sent > 100<<10 })
	end := d.Begin("proc.close_stdin", testdriver.Params{"process": id}, 1<<20)
	end.Cancel()
	if err := end.Finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	w.Cancel()
	if err := w.Finish(nil); err != nil {
		t.Fatal(err)
	}
	d.Call("proc.kill", testdriver.Params{"process": id}, nil)
}

func TestForgottenProcessHasEndedAndLeavesNothing(t *testing.T) {
	_, d := testdriver.Open(t)
	facts := d.Slot("s")
	count := func() int {
		t.Helper()
		var list struct{ Processes []any }
		d.Call("proc.list", testdriver.Params{"slot": "s"}, &list)
		return len(list.Processes)
	}
	forget := func(id string) *ipc.Receipt {
		t.Helper()
		var r struct{ Killed *ipc.Receipt }
		d.Call("proc.forget", testdriver.Params{"process": id}, &r)
		d.Fails("no_process", "proc.read", testdriver.Params{"process": id, "stream": 1, "offset": 0, "limit": 1})
		d.Fails("no_process", "proc.forget", testdriver.Params{"process": id})
		return r.Killed
	}
	files := func() string {
		t.Helper()
		_, out, _ := d.Sh("s", "ls "+facts["tmp"].(string))
		return out
	}
	ended, _ := d.Spawn(testdriver.Shell("s", "seq 200000; (sleep 1000 >&- 2>&- &)"))
	d.Wait(ended)
	if before := files(); !strings.Contains(before, "stdout") {
		t.Fatalf("the output is in no file: %q", before)
	}
	if killed := forget(ended); killed != nil || count() != 0 || files() != "" {
		t.Fatal(killed, count(), files())
	}
	for _, text := range []string{"echo; sleep 1000 & exec sleep 1000", "seq 200000; exec sleep 1000", "yes"} {
		running, _ := d.Spawn(testdriver.Shell("s", text))
		reader := d.Begin("proc.follow", testdriver.Params{"process": running, "stream": 1, "offset": 0}, 1<<20)
		reader.Until("output", func() bool { return reader.Data[1] != nil })
		if killed := forget(running); killed == nil || killed.Killed == 0 || killed.Left != 0 {
			t.Fatalf("%s: %+v", text, killed)
		}
		if err := reader.Finish(nil); err != nil {
			t.Fatal(text, err)
		}
		if count() != 0 {
			t.Fatal(text, count())
		}
	}
	var found struct{ Processes []any }
	d.Call("slot.processes", testdriver.Params{"slot": "s"}, &found)
	if len(found.Processes) != 1 {
		t.Fatal("a process that an ended one had left was ended too, or another was left", found)
	}
}

func TestSession(t *testing.T) {
	_, d := testdriver.Open(t)
	facts := d.Slot("s")
	var s struct {
		Session, Shell string
		Keeps          []string
	}
	d.Call("session.open", testdriver.Params{"slot": "s", "env": testdriver.Params{"GIVEN": "yes"}}, &s)
	run := func(text string) (testdriver.Exit, string) {
		t.Helper()
		p := testdriver.Shell("s", text)
		p["session"] = s.Session
		var e testdriver.Exit
		k := d.Call("exec.run", p, &e)
		if len(k.Bytes(2)) > 0 {
			t.Errorf("stderr %q", k.Bytes(2))
		}
		return e, string(k.Bytes(1))
	}
	e, out := run("cd /usr; A=1; export B=2; f() { echo in f; }; echo $GIVEN; exit 5")
	if e.ExitCode != 5 || out != "yes\n" || e.Cwd == nil || *e.Cwd != "/usr" {
		t.Fatalf("%+v %q", e, out)
	}
	if e, out = run(`echo "$A$B $PWD"; f; exec sh -c 'cd /; exit 3'`); e.ExitCode != 3 || out != "12 /usr\nin f\n" {
		t.Fatalf("%+v %q", e, out)
	}
	// One at a time, though sent at once.
	var all []*testdriver.Talk
	for range 10 {
		p := testdriver.Shell("s", "A=$A,; echo $A")
		p["session"] = s.Session
		all = append(all, d.Begin("exec.run", p, 1<<20))
	}
	had := map[int]bool{}
	for _, k := range all {
		if err := k.Finish(nil); err != nil {
			t.Fatal(err)
		}
		had[strings.Count(string(k.Bytes(1)), ",")] = true
	}
	if len(had) != len(all) || !had[len(all)] {
		t.Fatalf("they saw %v of each other", had)
	}
	p := testdriver.Shell("s", "cd /usr/bin; A=lost; sleep 1000")
	p["session"], p["timeout_s"] = s.Session, 3.0
	d.Call("exec.run", p, &e)
	if !e.TimedOut || e.Killed == nil || e.Killed.Left != 0 {
		t.Fatalf("%+v", e)
	}
	if e, out = run("pwd"); out != "/usr/bin\n" {
		t.Fatalf("%q", out)
	}
	if _, out = run("cd; mkdir gone; cd gone; rmdir ../gone"); out != "" {
		t.Fatalf("%q", out)
	}
	p = testdriver.Shell("s", "touch ran")
	p["session"] = s.Session
	err := d.Fails("os", "exec.run", p)
	if detail, _ := err.Detail.(map[string]any); detail["cwd"] != facts["workspace"] {
		t.Fatalf("the session goes on in %v", err.Detail)
	}
	if err.Errno != "ENOENT" || !strings.HasSuffix(string(err.Path), "/gone") ||
		!strings.Contains(err.Message, "nothing ran") {
		t.Fatalf("%+v", err)
	}
	if _, out = run("pwd; ls"); out != facts["workspace"].(string)+"\n" {
		t.Fatalf("%q", out)
	}
	// A process starts from the session's state and leaves it alone.
	p = testdriver.Shell("s", "f; echo $B; B=3; cd /")
	p["session"] = s.Session
	delete(p, "stream")
	id, _ := d.Spawn(p)
	if e := d.Wait(id); e.ExitCode != 0 {
		t.Fatalf("%+v", e)
	}
	if out, _ := d.Log(id, 1, 0, 100); string(out) != "in f\n2\n" {
		t.Fatalf("%q", out)
	}
	if _, out = run("echo $B $PWD"); out != "2 "+facts["workspace"].(string)+"\n" {
		t.Fatalf("%q", out)
	}
	d.Call("session.close", testdriver.Params{"session": s.Session}, nil)
	p = testdriver.Shell("s", "true")
	p["session"] = s.Session
	d.Fails("no_session", "exec.run", p)
	d.Fails("no_session", "session.close", testdriver.Params{"session": s.Session})
}

func TestPeekRunsBesideTheCommandOfItsSession(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	var s struct{ Session string }
	d.Call("session.open", testdriver.Params{"slot": "s"}, &s)
	begin := func(text string, more testdriver.Params) *testdriver.Talk {
		p := testdriver.Shell("s", text)
		p["session"] = s.Session
		for name, value := range more {
			p[name] = value
		}
		return d.Begin("exec.run", p, 1<<20)
	}
	finish := func(k *testdriver.Talk) (testdriver.Exit, string) {
		t.Helper()
		var e testdriver.Exit
		if err := k.Finish(&e); err != nil {
			t.Fatal(err)
		}
		return e, string(k.Bytes(1)) + string(k.Bytes(2))
	}
	peek := testdriver.Params{"peek": true}
	finish(begin("cd /usr; A=1; f() { echo f $A $PWD; }", nil))
	busy := begin("A=2; cd /; mkfifo ~/gate; cat ~/gate", nil)
	e, out := finish(begin("f; A=3; cd /tmp; until test -p ~/gate; do sleep .01; done; echo go > ~/gate", peek))
	if out != "f 1 /usr\n" || e.Cwd != nil {
		t.Fatalf("%q %v", out, e.Cwd)
	}
	if e, out = finish(busy); out != "go\n" || *e.Cwd != "/" {
		t.Fatalf("%q %+v", out, e)
	}
	if _, out = finish(begin("f", peek)); out != "f 2 /\n" {
		t.Fatalf("%q", out)
	}
	// A directory that is gone is the session's own business.
	finish(begin("cd ~; mkdir gone; cd gone; rmdir ../gone", nil))
	k := begin("touch ran", peek)
	if err := k.Finish(nil); err == nil || err.Errno != "ENOENT" || err.Detail != nil {
		t.Fatal(err)
	}
	if err := begin("true", nil).Finish(nil); err == nil || err.Detail == nil {
		t.Fatal("a peek moved the session", err)
	}
	d.Fails("bad_request", "exec.run", testdriver.Params{"slot": "s", "shell": "true", "peek": true})
	d.Fails("bad_request", "proc.spawn", testdriver.Params{"slot": "s", "shell": "true", "session": s.Session,
		"peek": true})
}

func TestCanceledInLine(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	var s struct{ Session string }
	d.Call("session.open", testdriver.Params{"slot": "s"}, &s)
	p := testdriver.Shell("s", "sleep 1000")
	p["session"] = s.Session
	first := d.Begin("exec.run", p, 1<<20)
	first.Until("the start", func() bool { return len(first.Events) == 1 })
	p["shell"] = "echo never"
	second := d.Begin("exec.run", p, 1<<20)
	p["shell"] = "echo third"
	third := d.Begin("exec.run", p, 1<<20)
	second.Cancel()
	if err := second.Finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	first.Cancel()
	if err := first.Finish(nil); err != nil {
		t.Fatal(err)
	}
	if err := third.Finish(nil); err != nil || string(third.Bytes(1)) != "third\n" {
		t.Fatal(err)
	}
}

func TestNothingWaitsForAProcessThatHasEnded(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	for range 3 {
		id, _ := d.Spawn(testdriver.Shell("s", "true"))
		d.Wait(id)
	}
	before := runtime.NumGoroutine()
	for range 100 {
		id, _ := d.Spawn(testdriver.Shell("s", "true"))
		d.Wait(id)
	}
	for until := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before+50; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal(before, runtime.NumGoroutine())
		}
	}
}
