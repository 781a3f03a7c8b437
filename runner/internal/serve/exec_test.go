package serve_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	e, out, errs := d.sh("s", "echo hello; echo oops >&2; exit 3")
	if e.ExitCode != 3 || out != "hello\n" || errs != "oops\n" || !e.Started || e.TimedOut || e.Canceled ||
		e.Signal != nil {
		t.Fatalf("%+v %q %q", e, out, errs)
	}
	if e.Stdout != (kept{6, 6, 0}) || e.Stderr != (kept{5, 5, 0}) || e.DurationS <= 0 {
		t.Fatalf("%+v", e)
	}
}

func TestRunArgvAndEnvironment(t *testing.T) {
	_, d := open(t)
	facts := d.slot("s")
	var e exit
	k := d.call("exec.run", params{"slot": "s",
		"argv": []any{"sh", "-c", `printf '%s|%s|%s' "$1" "$X" "$PWD"`, "sh", map[string]string{"b64": "/yE="}},
		"env":  params{"X": "a b"}}, &e)
	want := "\xff!|a b|" + facts["workspace"].(string)
	if got := string(k.bytes(1)); got != want {
		t.Fatalf("%q, expected %q", got, want)
	}
}

func TestLongScriptsFollowTheSameRules(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	for _, size := range []int{10, 70 << 10, 1 << 20} {
		text := "echo $0 $#; ls -l /proc/self/fd | grep -c memfd; false; x='" + strings.Repeat("y", size) +
			"'; echo ${#x}; exit 7"
		e, out, errs := d.sh("s", text)
		lines := strings.Fields(out)
		if e.ExitCode != 7 || len(lines) != 4 || !strings.HasSuffix(lines[0], "bash") || lines[1] != "0" ||
			lines[2] != "0" {
			t.Fatalf("%d: %+v %q %q", size, e, out, errs)
		}
	}
}

func TestBadParams(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	cases := map[string]params{
		"no command":       {"slot": "s"},
		"both":             {"slot": "s", "shell": "x", "argv": []string{"x"}},
		"empty argv":       {"slot": "s", "argv": []string{}},
		"NUL in text":      {"slot": "s", "shell": "a\x00b"},
		"NUL in argv":      {"slot": "s", "argv": []string{"a", "\x00"}},
		"name with =":      {"slot": "s", "shell": "x", "env": params{"A=B": "c"}},
		"empty name":       {"slot": "s", "shell": "x", "env": params{"": "c"}},
		"negative timeout": {"slot": "s", "shell": "x", "timeout_s": -1},
		"zero timeout":     {"slot": "s", "shell": "x", "timeout_s": 0},
		"wrong type":       {"slot": "s", "shell": 5},
		"negative limit":   {"slot": "s", "shell": "x", "output_limit_bytes": -1},
		"huge limit":       {"slot": "s", "shell": "x", "output_limit_bytes": 1 << 40},
		"no slot":          {"shell": "x"},
	}
	for name, p := range cases {
		t.Run(name, func(t *testing.T) { d.fails("bad_request", "exec.run", p) })
	}
	d.fails("bad_request", "exec.walk", params{})
	d.fails("no_slot", "exec.run", shell("other", "x"))
	d.fails("os", "exec.run", params{"slot": "s", "shell": "x", "cwd": "missing"})
}

func TestMissingPrograms(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	for _, c := range []struct {
		argv []string
		code int
	}{{[]string{"no-such-program"}, 127}, {[]string{"/no/such"}, 127}, {[]string{"/etc/passwd"}, 126},
		{[]string{"/"}, 126}} {
		var e exit
		k := d.call("exec.run", params{"slot": "s", "argv": c.argv}, &e)
		if e.ExitCode != c.code || e.Started || e.Reason == nil || !strings.Contains(string(k.bytes(2)), *e.Reason) ||
			len(k.events) != 0 {
			t.Fatalf("%v: %+v %q", c.argv, e, k.bytes(2))
		}
	}
}

func TestTimeout(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	cases := map[string]struct {
		text string
		code int
	}{
		"obeys TERM":   {"echo before; sleep 1000", 143},
		"ignores TERM": {"trap '' TERM; echo before; while :; do sleep 1; done", 137},
		"stopped":      {"echo before; kill -STOP $$; echo never", 143},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := shell("s", c.text)
			p["timeout_s"] = 2.0
			begun := time.Now()
			var e exit
			k := d.begin("exec.run", p, 1<<20)
			if err := k.finish(&e); err != nil {
				t.Fatal(err)
			}
			if !e.TimedOut || e.Canceled || e.ExitCode != c.code && e.ExitCode != 137 || e.Killed == nil ||
				e.Killed.Left != 0 || string(k.bytes(1)) != "before\n" {
				t.Fatalf("%+v %+v %q", e, e.Killed, k.bytes(1))
			}
			if took := time.Since(begun); took > 30*time.Second {
				t.Fatal(took)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	k := d.begin("exec.run", shell("s", "echo partial; sleep 1000 & setsid sleep 1000 & wait"), 1<<20)
	k.until("the start", func() bool { return len(k.events) == 1 })
	k.cancel()
	var e exit
	if err := k.finish(&e); err != nil || !e.Canceled || e.TimedOut || e.Killed == nil || e.Killed.Left != 0 ||
		e.ExitCode < 128 {
		t.Fatalf("%v %+v", err, e)
	}
	var left struct{ Processes []struct{ PID int } }
	d.call("slot.processes", params{"slot": "s"}, &left)
	if len(left.Processes) != 0 {
		t.Fatalf("%+v", left)
	}
}

func TestGrandchildHoldsOutput(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	begun := time.Now()
	e, out, _ := d.sh("s", `echo first; (sleep 0.3; i=0; while [ $i -lt 20000 ]; do echo "a line that nobody reads $i"; i=$((i+1)); done; echo survived > after) & exit 3`)
	if e.ExitCode != 3 || out != "first\n" || time.Since(begun) > 30*time.Second {
		t.Fatalf("%+v %q", e, out)
	}
	// It neither blocked on the pipe nor was it killed by it.
	_, out, _ = d.sh("s", "for i in $(seq 200); do [ -s after ] && break; sleep 0.05; done; cat after")
	if out != "survived\n" {
		t.Fatalf("%q", out)
	}
}

func TestEndlessGrandchildDoesNotHoldTheAnswer(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	e, out, _ := d.sh("s", "yes & echo $! ; sleep 0.05; exit 0")
	if e.ExitCode != 0 || len(out) == 0 {
		t.Fatalf("%+v", e)
	}
	var r struct{ Clean bool }
	d.call("slot.reset", params{"slot": "s"}, &r)
}

func TestStdin(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	run := func(p params, input []byte) (exit, *talk) {
		t.Helper()
		p["stdin"] = true
		k := d.begin("exec.run", p, 1<<20)
		go k.send(input, true)
		var e exit
		if err := k.finish(&e); err != nil {
			t.Fatal(err)
		}
		return e, k
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 50<<20/16)
	sum := sha256.Sum256(big)
	if _, k := run(shell("s", "sha256sum"), big); !strings.HasPrefix(string(k.bytes(1)), hex.EncodeToString(sum[:])) {
		t.Fatalf("%q", k.bytes(1))
	}
	if e, k := run(shell("s", "cat"), nil); e.ExitCode != 0 || len(k.bytes(1)) != 0 {
		t.Fatalf("%+v", e)
	}
	for _, text := range []string{"true", "sleep 0.1; echo never read", "head -c 10 >/dev/null; exec <&-; sleep 0.1"} {
		if e, _ := run(shell("s", text), big[:8<<20]); e.ExitCode != 0 {
			t.Fatalf("%s: %+v", text, e)
		}
	}
	if _, out, _ := d.sh("s", "cat; readlink /proc/self/fd/0"); out != "/dev/null\n" {
		t.Fatalf("%q", out)
	}
}

func TestOutputOverTheLimit(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "seq 1000000; seq 5 >&2")
	p["output_limit_bytes"] = 1000
	var e exit
	k := d.call("exec.run", p, &e)
	out := string(k.bytes(1))
	if e.Stdout != (kept{6888896, 400, 600}) || len(out) != 1000 || !strings.HasPrefix(out, "1\n2\n") ||
		!strings.HasSuffix(out, "\n1000000\n") {
		t.Fatalf("%+v %q", e, out)
	}
	if e.Stderr != (kept{10, 10, 0}) || string(k.bytes(2)) != "1\n2\n3\n4\n5\n" || e.Segments != nil ||
		e.Merged == nil || e.Merged.Total != 6888906 {
		t.Fatalf("%+v", e)
	}
	merged := string(k.bytes(3))
	if len(merged) != 1000 || !strings.HasPrefix(merged, "1\n2\n") || e.Spill == nil {
		t.Fatalf("%q %v", merged, e.Spill)
	}
	_, out, _ = d.sh("s", "seq 1000000 | cmp - "+*e.Spill+" && stat -c %s "+*e.Spill)
	if out != "6888896\n" {
		t.Fatalf("%q", out)
	}
}

func TestMergedOrder(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	var e exit
	p := shell("s", "echo a; sleep 0.5; echo b >&2; sleep 0.5; echo c")
	k := d.call("exec.run", p, &e)
	if fmt.Sprint(e.Segments) != "[[1 2] [2 2] [1 2]]" || string(k.bytes(1)) != "a\nc\n" ||
		string(k.bytes(2)) != "b\n" {
		t.Fatalf("%+v", e)
	}
	p["merge_stderr"], e = true, exit{}
	k = d.call("exec.run", p, &e)
	if string(k.bytes(1)) != "a\nb\nc\n" || e.Stderr.Total != 0 || fmt.Sprint(e.Segments) != "[[1 6]]" {
		t.Fatalf("%+v %q", e, k.bytes(1))
	}
}

func TestStreamedOutputUnderCredit(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "head -c 100000000 /dev/zero; echo err >&2")
	p["stream"] = true
	k := d.begin("exec.run", p, 256<<10)
	k.mu.Lock()
	k.manual = true
	k.mu.Unlock()
	k.until("a full window", func() bool { return k.position >= 256<<10 })
	time.Sleep(50 * time.Millisecond)
	k.mu.Lock()
	if k.position > 256<<10+2*65536 {
		t.Errorf("%d bytes without credit", k.position)
	}
	k.manual = false
	k.grant()
	k.mu.Unlock()
	var e exit
	if err := k.finish(&e); err != nil || len(k.bytes(5)) != 100000000 || string(k.bytes(6)) != "err\n" ||
		e.Stdout.Total != 100000000 {
		t.Fatalf("%v %+v %d", err, e, len(k.bytes(5)))
	}
}

func TestTinyAlternatingWritesStayCheap(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	p := shell("s", "i=0; while [ $i -lt 3000 ]; do echo -n o; echo -n e >&2; i=$((i+1)); done")
	p["stream"] = true
	var e exit
	k := d.begin("exec.run", p, 1<<20)
	if err := k.finish(&e); err != nil || len(k.bytes(5)) != 3000 || len(k.bytes(6)) != 3000 || e.Stdout.Total != 3000 {
		t.Fatal(err, e)
	}
}

func TestResetEndsWhatRuns(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	k := d.begin("exec.run", shell("s", "sleep 1000"), 1<<20)
	k.until("the start", func() bool { return len(k.events) == 1 })
	var proc struct{ Process string }
	d.call("proc.spawn", shell("s", "echo on; sleep 1000"), &proc)
	var opened struct{ Session string }
	d.call("session.open", params{"slot": "s"}, &opened)
	w := d.begin("proc.follow", params{"process": proc.Process, "stream": 1, "offset": 0}, 1<<20)
	w.until("output", func() bool { return w.data[1] != nil })
	var r struct {
		Clean  bool
		Killed struct{ Found, Left int }
	}
	d.call("slot.reset", params{"slot": "s"}, &r)
	for _, k := range []*talk{k, w} {
		if err := k.finish(nil); err == nil || err.Kind != "slot_closed" {
			t.Fatal(err)
		}
	}
	d.fails("no_process", "proc.wait", params{"process": proc.Process})
	p := shell("s", "true")
	p["session"] = opened.Session
	d.fails("no_session", "exec.run", p)
	if _, out, _ := d.sh("s", "echo again"); out != "again\n" {
		t.Fatal(out)
	}
	d.call("slot.destroy", params{"slot": "s"}, nil)
	d.fails("no_slot", "exec.run", shell("s", "true"))
	d.fails("no_slot", "slot.reset", params{"slot": "s"})
}

func TestKillAll(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	k := d.begin("exec.run", shell("s", "sleep 1000"), 1<<20)
	k.until("the start", func() bool { return len(k.events) == 1 })
	var r struct {
		Killed struct{ Found, Killed, Left int }
	}
	d.call("slot.kill_all", params{"slot": "s"}, &r)
	if r.Killed.Found == 0 || r.Killed.Left != 0 {
		t.Fatalf("%+v", r)
	}
	var e exit
	if err := k.finish(&e); err != nil || e.ExitCode != 137 || e.Signal == nil || *e.Signal != 9 || e.TimedOut {
		t.Fatalf("%v %+v", err, e)
	}
}

func TestManyAtOnce(t *testing.T) {
	_, d := open(t)
	for i := range 4 {
		d.slot(fmt.Sprint("s", i))
	}
	var all []*talk
	for i := range 64 {
		all = append(all, d.begin("exec.run",
			shell(fmt.Sprint("s", i%4), fmt.Sprintf("echo out %d; echo err %d >&2; exit %d", i, i, i)), 1<<20))
	}
	for i, k := range all {
		var e exit
		if err := k.finish(&e); err != nil || e.ExitCode != i || string(k.bytes(1)) != fmt.Sprintf("out %d\n", i) ||
			string(k.bytes(2)) != fmt.Sprintf("err %d\n", i) {
			t.Fatalf("%d: %v %+v %q", i, err, e, k.bytes(1))
		}
	}
}

func TestSignalDeathIsNoTimeout(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	e, _, _ := d.sh("s", "kill -SEGV $$")
	if e.ExitCode != 139 || e.Signal == nil || *e.Signal != 11 || e.TimedOut || e.Killed != nil {
		t.Fatalf("%+v", e)
	}
}
