package serve_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

func (d *driver) spawn(p params) (id string, pid int) {
	d.t.Helper()
	var r struct {
		Process string
		PID     int
	}
	d.call("proc.spawn", p, &r)
	return r.Process, r.PID
}

func (d *driver) wait(id string) exit {
	d.t.Helper()
	var r struct{ Exit *exit }
	d.call("proc.wait", params{"process": id}, &r)
	if r.Exit == nil {
		d.t.Fatal("no exit")
	}
	return *r.Exit
}

func (d *driver) log(id string, stream int, offset, limit int64) ([]byte, map[string]any) {
	d.t.Helper()
	var r map[string]any
	k := d.call("proc.read", params{"process": id, "stream": stream, "offset": offset, "limit": limit}, &r)
	return k.bytes(1), r
}

func TestProcess(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "echo ready; while read line; do echo got $line; done; echo over >&2; exit 4")
	p["stdin"], p["tag"] = true, "mine"
	id, pid := d.spawn(p)
	if pid <= 0 {
		t.Fatal(pid)
	}
	var w struct{ Written int64 }
	k := d.begin("proc.write", params{"process": id}, 1<<20)
	k.send([]byte("one\ntwo\n"), true)
	if err := k.finish(&w); err != nil || w.Written != 8 {
		t.Fatal(err, w)
	}
	var none struct{ Exit *exit }
	d.call("proc.wait", params{"process": id, "timeout_s": 0.05}, &none)
	if none.Exit != nil {
		t.Fatalf("%+v", none)
	}
	var list struct {
		Processes []struct {
			Process, Command, Tag string
			PID                   int
			PTY                   bool
			Exit                  *exit
			StdoutBytes           int64 `json:"stdout_bytes"`
		}
	}
	d.call("proc.list", params{"slot": "s"}, &list)
	if len(list.Processes) != 1 || list.Processes[0].Tag != "mine" || list.Processes[0].PID != pid ||
		list.Processes[0].Exit != nil || list.Processes[0].Command != p["shell"] {
		t.Fatalf("%+v", list)
	}
	d.call("proc.close_stdin", params{"process": id}, nil)
	if e := d.wait(id); e.ExitCode != 4 || e.Stdout.Total != 22 || e.Stderr.Total != 5 {
		t.Fatalf("%+v", e)
	}
	out, r := d.log(id, 1, 0, 1000)
	if string(out) != "ready\ngot one\ngot two\n" || r["end"] != true || r["next_offset"] != 22.0 {
		t.Fatalf("%q %v", out, r)
	}
	if out, r = d.log(id, 1, -8, 4); string(out) != "got " || r["offset"] != 14.0 || r["end"] != false {
		t.Fatalf("%q %v", out, r)
	}
	if out, _ = d.log(id, 2, 0, 100); string(out) != "over\n" {
		t.Fatalf("%q", out)
	}
	d.fails("bad_request", "proc.write", params{"process": id})
	d.fails("bad_request", "proc.read", params{"process": id, "stream": 3, "offset": 0, "limit": 1})
	d.fails("no_process", "proc.read", params{"process": "p999", "stream": 1, "offset": 0, "limit": 1})
}

func TestProcessThatCannotStart(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	id, _ := d.spawn(params{"slot": "s", "argv": []string{"no-such-program"}})
	if e := d.wait(id); e.ExitCode != 127 || e.Started {
		t.Fatalf("%+v", e)
	}
	if out, _ := d.log(id, 2, 0, 1000); !strings.Contains(string(out), "no-such-program") {
		t.Fatalf("%q", out)
	}
	d.fails("os", "proc.spawn", params{"slot": "s", "argv": []string{"true"}, "cwd": "/missing"})
}

func TestProcessLogIsLongerThanMemory(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	const size = 80 << 20
	p := shell("s", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' 'a'; printf END", size))
	id, _ := d.spawn(p)
	if e := d.wait(id); e.Stdout.Total != size+3 {
		t.Fatalf("%+v", e)
	}
	out, r := d.log(id, 1, 0, 1000)
	first := int64(r["offset"].(float64))
	if want := int64(size + 3 - 64<<20); first < want || first > want+1<<20 || len(out) != 1000 ||
		string(bytes.Trim(out, "a")) != "" {
		t.Fatalf("%v %d", r, len(out))
	}
	if out, r = d.log(id, 1, -3, 1000); string(out) != "END" || r["end"] != true {
		t.Fatalf("%q %v", out, r)
	}
	if out, r = d.log(id, 1, size-1<<20, 2<<20); len(out) != 1<<20+3 || r["end"] != true ||
		!bytes.HasSuffix(out, []byte("aaaEND")) {
		t.Fatalf("%d %v", len(out), r)
	}
}

func TestFollowerSlowsTheProcessAndLosesNothing(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	const size = 150 << 20
	p := shell("s", fmt.Sprintf("read go; head -c %d /dev/zero; printf END", size))
	p["stdin"] = true
	id, _ := d.spawn(p)
	k := d.begin("proc.follow", params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.mu.Lock()
	k.manual = true
	k.mu.Unlock()
	w := d.begin("proc.write", params{"process": id}, 1<<20)
	w.send([]byte("go\n"), true)
	if err := w.finish(nil); err != nil {
		t.Fatal(err)
	}
	k.until("a full window", func() bool { return k.position >= 1<<20 })
	var none struct{ Exit *exit }
	d.call("proc.wait", params{"process": id, "timeout_s": 0.5}, &none)
	if none.Exit != nil {
		t.Fatal("the process did not wait for its reader")
	}
	k.mu.Lock()
	k.manual = false
	k.grant()
	k.mu.Unlock()
	var r struct {
		Next int64 `json:"next_offset"`
		Lost int64 `json:"lost_bytes"`
	}
	if err := k.finish(&r); err != nil || r.Next != size+3 || r.Lost != 0 || len(k.bytes(1)) != size+3 ||
		!bytes.HasSuffix(k.bytes(1), []byte("END")) {
		t.Fatal(err, r, len(k.bytes(1)))
	}
	if e := d.wait(id); e.ExitCode != 0 {
		t.Fatalf("%+v", e)
	}
}

func TestFollowCanBeCalledOff(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	id, _ := d.spawn(shell("s", "echo one; sleep 1000"))
	k := d.begin("proc.follow", params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.until("output", func() bool { return k.data[1] != nil })
	k.cancel()
	var r struct {
		Next int64 `json:"next_offset"`
	}
	if err := k.finish(&r); err != nil || r.Next != 4 {
		t.Fatal(err, r)
	}
}

func TestSignalAndKill(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	id, _ := d.spawn(shell("s", "trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.02; done"))
	k := d.begin("proc.follow", params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.until("the start", func() bool { return k.data[1] != nil })
	d.call("proc.signal", params{"process": id, "signal": 10}, nil)
	if e := d.wait(id); e.ExitCode != 9 {
		t.Fatalf("%+v", e)
	}
	if err := k.finish(nil); err != nil || string(k.bytes(1)) != "ready\nusr1\n" {
		t.Fatal(err)
	}
	id, _ = d.spawn(shell("s", "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo ready; wait"))
	k = d.begin("proc.follow", params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.until("the start", func() bool { return k.data[1] != nil })
	var r struct {
		Killed struct{ Found, Killed, Left int }
	}
	d.call("proc.kill", params{"process": id}, &r)
	if r.Killed.Found < 2 || r.Killed.Left != 0 {
		t.Fatalf("%+v", r)
	}
	if e := d.wait(id); e.ExitCode < 128 {
		t.Fatalf("%+v", e)
	}
	d.fails("bad_request", "proc.signal", params{"process": id, "signal": 0})
}

func TestTerminal(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", `test -t 0 && test -t 1 && test -t 2 && stty size; read line; echo "got $line"; stty size; cat; echo end`)
	p["pty"] = map[string]int{"rows": 33, "cols": 77}
	id, _ := d.spawn(p)
	k := d.begin("proc.follow", params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	sees := func(text string) func() bool {
		return func() bool { return k.data[1] != nil && strings.Contains(k.data[1].String(), text) }
	}
	k.until("the size", sees("33 77"))
	d.call("proc.resize", params{"process": id, "rows": 44, "cols": 88}, nil)
	w := d.begin("proc.write", params{"process": id}, 1<<20)
	w.send([]byte("hello\n"), true)
	if err := w.finish(nil); err != nil {
		t.Fatal(err)
	}
	k.until("the new size", sees("44 88"))
	d.call("proc.close_stdin", params{"process": id}, nil)
	if err := k.finish(nil); err != nil || !strings.Contains(string(k.bytes(1)), "got hello\r\n") ||
		!strings.HasSuffix(string(k.bytes(1)), "end\r\n") {
		t.Fatalf("%v %q", err, k.bytes(1))
	}
	if e := d.wait(id); e.ExitCode != 0 {
		t.Fatalf("%+v", e)
	}
	d.fails("bad_request", "proc.resize", params{"process": id, "rows": 0, "cols": 88})
}

func TestTheEndOfInputIsWhatTheTerminalTakesForIt(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	for chosen, said := range map[string]string{"^D": "ended", "^Y": "ended", "undef": "waits"} {
		limit := map[string]string{"ended": "60", "waits": "2"}[said]
		p := shell("s", `stty eof '`+chosen+`' -echo; echo ready; timeout --foreground `+limit+` cat; test $? = 124 && echo waits || echo ended`)
		p["pty"] = map[string]int{"rows": 33, "cols": 77}
		id, _ := d.spawn(p)
		k := d.begin("proc.follow", params{"process": id, "stream": 1, "offset": 0}, 1<<20)
		k.until("the settings", func() bool {
			return k.data[1] != nil &&
				strings.Contains(k.data[1].String(), "ready")
		})
		d.call("proc.close_stdin", params{"process": id}, nil)
		if err := k.finish(nil); err != nil || !strings.HasSuffix(string(k.bytes(1)), said+"\r\n") {
			t.Errorf("%s: %v %q", chosen, err, k.bytes(1))
		}
	}
}

func TestAWriteThatIsCalledOffTellsHowFarItCame(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "read go < go; cat | sha256sum")
	p["stdin"] = true
	d.call("exec.run", shell("s", "mkfifo go"), nil)
	id, _ := d.spawn(p)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	sent, w := data, struct{ Written int }{}
	for range 3 {
		k, more := d.begin("proc.write", params{"process": id}, 1<<20), sent
		go k.send(more, true)
		k.until("some input", func() bool { return k.sent > 100<<10 })
		k.cancel()
		if err := k.finish(&w); err != nil || w.Written >= len(sent) {
			t.Fatal(err, w)
		}
		sent = sent[w.Written:]
	}
	if len(sent) == len(data) || w.Written != 0 { // the pipe was full by then
		t.Fatal(len(sent), w)
	}
	d.call("exec.run", shell("s", "echo > go"), nil)
	k := d.begin("proc.write", params{"process": id}, 1<<20)
	k.send(sent, true)
	if err := k.finish(&w); err != nil || w.Written != len(sent) {
		t.Fatal(err, w)
	}
	d.call("proc.close_stdin", params{"process": id}, nil)
	d.wait(id)
	sum := sha256.Sum256(data)
	if out, _ := d.log(id, 1, 0, 100); !strings.HasPrefix(string(out), hex.EncodeToString(sum[:])) {
		t.Fatalf("%s is not %x", out, sum)
	}
}

func TestCloseStdinEndsAWriteThatWaits(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "sleep 1000")
	p["stdin"] = true
	id, _ := d.spawn(p)
	k := d.begin("proc.write", params{"process": id}, 1<<20)
	go k.send(make([]byte, 1<<20), true)
	k.until("some input", func() bool { return k.sent > 100<<10 })
	d.call("proc.close_stdin", params{"process": id}, nil)
	if err := k.finish(nil); err == nil || err.Kind != "bad_request" {
		t.Fatal(err)
	}
	d.fails("bad_request", "proc.write", params{"process": id})
	d.call("proc.kill", params{"process": id}, nil)
}

func TestNothingWaitsForATerminalThatReadsNothing(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "stty raw -echo; echo ready; sleep 1000")
	p["pty"] = map[string]int{"rows": 33, "cols": 77}
	id, _ := d.spawn(p)
	k := d.begin("proc.follow", params{"process": id, "stream": 1, "offset": 0}, 1<<20)
	k.until("the settings", func() bool { return k.data[1] != nil && strings.Contains(k.data[1].String(), "ready") })
	w := d.begin("proc.write", params{"process": id}, 1<<20)
	go w.send(make([]byte, 1<<20), true)
	w.until("some input", func() bool { return w.sent > 100<<10 })
	end := d.begin("proc.close_stdin", params{"process": id}, 1<<20)
	end.cancel()
	if err := end.finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	w.cancel()
	if err := w.finish(nil); err != nil {
		t.Fatal(err)
	}
	d.call("proc.kill", params{"process": id}, nil)
}

func TestSession(t *testing.T) {
	_, d := open(t)
	facts := d.slot("s")
	var s struct {
		Session, Shell string
		Keeps          []string
	}
	d.call("session.open", params{"slot": "s", "env": params{"GIVEN": "yes"}}, &s)
	run := func(text string) (exit, string) {
		t.Helper()
		p := shell("s", text)
		p["session"] = s.Session
		var e exit
		k := d.call("exec.run", p, &e)
		if len(k.bytes(2)) > 0 {
			t.Errorf("stderr %q", k.bytes(2))
		}
		return e, string(k.bytes(1))
	}
	e, out := run("cd /usr; A=1; export B=2; f() { echo in f; }; echo $GIVEN; exit 5")
	if e.ExitCode != 5 || out != "yes\n" || e.Cwd == nil || *e.Cwd != "/usr" {
		t.Fatalf("%+v %q", e, out)
	}
	if e, out = run(`echo "$A$B $PWD"; f; exec sh -c 'cd /; exit 3'`); e.ExitCode != 3 || out != "12 /usr\nin f\n" {
		t.Fatalf("%+v %q", e, out)
	}
	// One at a time, though sent at once.
	var all []*talk
	for range 10 {
		p := shell("s", "A=$A,; echo $A")
		p["session"] = s.Session
		all = append(all, d.begin("exec.run", p, 1<<20))
	}
	had := map[int]bool{}
	for _, k := range all {
		if err := k.finish(nil); err != nil {
			t.Fatal(err)
		}
		had[strings.Count(string(k.bytes(1)), ",")] = true
	}
	if len(had) != len(all) || !had[len(all)] {
		t.Fatalf("they saw %v of each other", had)
	}
	p := shell("s", "cd /usr/bin; A=lost; sleep 1000")
	p["session"], p["timeout_s"] = s.Session, 3.0
	d.call("exec.run", p, &e)
	if !e.TimedOut || e.Killed == nil || e.Killed.Left != 0 {
		t.Fatalf("%+v", e)
	}
	if e, out = run("pwd"); out != "/usr/bin\n" {
		t.Fatalf("%q", out)
	}
	if _, out = run("cd; mkdir gone; cd gone; rmdir ../gone"); out != "" {
		t.Fatalf("%q", out)
	}
	p = shell("s", "touch ran")
	p["session"] = s.Session
	err := d.fails("os", "exec.run", p)
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
	p = shell("s", "f; echo $B; B=3; cd /")
	p["session"] = s.Session
	delete(p, "stream")
	id, _ := d.spawn(p)
	if e := d.wait(id); e.ExitCode != 0 {
		t.Fatalf("%+v", e)
	}
	if out, _ := d.log(id, 1, 0, 100); string(out) != "in f\n2\n" {
		t.Fatalf("%q", out)
	}
	if _, out = run("echo $B $PWD"); out != "2 "+facts["workspace"].(string)+"\n" {
		t.Fatalf("%q", out)
	}
	d.call("session.close", params{"session": s.Session}, nil)
	p = shell("s", "true")
	p["session"] = s.Session
	d.fails("no_session", "exec.run", p)
	d.fails("no_session", "session.close", params{"session": s.Session})
}

func TestCanceledInLine(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	var s struct{ Session string }
	d.call("session.open", params{"slot": "s"}, &s)
	p := shell("s", "sleep 1000")
	p["session"] = s.Session
	first := d.begin("exec.run", p, 1<<20)
	first.until("the start", func() bool { return len(first.events) == 1 })
	p["shell"] = "echo never"
	second := d.begin("exec.run", p, 1<<20)
	p["shell"] = "echo third"
	third := d.begin("exec.run", p, 1<<20)
	second.cancel()
	if err := second.finish(nil); err == nil || err.Kind != "canceled" {
		t.Fatal(err)
	}
	first.cancel()
	if err := first.finish(nil); err != nil {
		t.Fatal(err)
	}
	if err := third.finish(nil); err != nil || string(third.bytes(1)) != "third\n" {
		t.Fatal(err)
	}
}

func TestNothingWaitsForAProcessThatHasEnded(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	for range 3 {
		id, _ := d.spawn(shell("s", "true"))
		d.wait(id)
	}
	before := runtime.NumGoroutine()
	for range 100 {
		id, _ := d.spawn(shell("s", "true"))
		d.wait(id)
	}
	for until := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before+50; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal(before, runtime.NumGoroutine())
		}
	}
}
