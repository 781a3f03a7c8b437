package exec_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"hermes-exec/runner/internal/testdriver"
)

func TestRun(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	e, out, errs := d.Sh("s", "echo hello; echo oops >&2; exit 3")
	if e.ExitCode != 3 || out != "hello\n" || errs != "oops\n" || !e.Started || e.TimedOut || e.Canceled ||
		e.Signal != nil {
		t.Fatalf("%+v %q %q", e, out, errs)
	}
	if e.Stdout != (testdriver.Kept{Total: 6, Head: 6, Tail: 0}) || e.Stderr != (testdriver.Kept{Total: 5, Head: 5, Tail: 0}) || e.DurationS <= 0 {
		t.Fatalf("%+v", e)
	}
}

func TestRunArgvAndEnvironment(t *testing.T) {
	_, d := testdriver.Open(t)
	facts := d.Slot("s")
	var e testdriver.Exit
	k := d.Call("exec.run", testdriver.Params{"slot": "s",
		"argv": []any{"sh", "-c", `printf '%s|%s|%s' "$1" "$X" "$PWD"`, "sh", map[string]string{"b64": "/yE="}},
		"env":  testdriver.Params{"X": "a b"}}, &e)
	want := "\xff!|a b|" + facts["workspace"].(string)
	if got := string(k.Bytes(1)); got != want {
		t.Fatalf("%q, expected %q", got, want)
	}
}

func TestLongScriptsFollowTheSameRules(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	for _, size := range []int{10, 70 << 10, 1 << 20} {
		text := "echo $0 $#; ls -l /proc/self/fd | grep -c memfd; false; x='" + strings.Repeat("y", size) +
			"'; echo ${#x}; exit 7"
		e, out, errs := d.Sh("s", text)
		lines := strings.Fields(out)
		if e.ExitCode != 7 || len(lines) != 4 || !strings.HasSuffix(lines[0], "bash") || lines[1] != "0" ||
			lines[2] != "0" {
			t.Fatalf("%d: %+v %q %q", size, e, out, errs)
		}
	}
}

func TestBadParams(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	cases := map[string]testdriver.Params{
		"no command":       {"slot": "s"},
		"both":             {"slot": "s", "shell": "x", "argv": []string{"x"}},
		"empty argv":       {"slot": "s", "argv": []string{}},
		"NUL in text":      {"slot": "s", "shell": "a\x00b"},
		"NUL in argv":      {"slot": "s", "argv": []string{"a", "\x00"}},
		"name with =":      {"slot": "s", "shell": "x", "env": testdriver.Params{"A=B": "c"}},
		"empty name":       {"slot": "s", "shell": "x", "env": testdriver.Params{"": "c"}},
		"negative timeout": {"slot": "s", "shell": "x", "timeout_s": -1},
		"zero timeout":     {"slot": "s", "shell": "x", "timeout_s": 0},
		"wrong type":       {"slot": "s", "shell": 5},
		"negative limit":   {"slot": "s", "shell": "x", "output_limit_bytes": -1},
		"huge limit":       {"slot": "s", "shell": "x", "output_limit_bytes": 1 << 40},
		"no slot":          {"shell": "x"},
	}
	for name, p := range cases {
		t.Run(name, func(t *testing.T) { d.Fails("bad_request", "exec.run", p) })
	}
	d.Fails("bad_request", "exec.walk", testdriver.Params{})
	d.Fails("no_slot", "exec.run", testdriver.Shell("other", "x"))
	d.Fails("os", "exec.run", testdriver.Params{"slot": "s", "shell": "x", "cwd": "missing"})
}

func TestMissingPrograms(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	for _, c := range []struct {
		argv []string
		code int
	}{{[]string{"no-such-program"}, 127}, {[]string{"/no/such"}, 127}, {[]string{"/etc/passwd"}, 126},
		{[]string{"/"}, 126}} {
		var e testdriver.Exit
		k := d.Call("exec.run", testdriver.Params{"slot": "s", "argv": c.argv}, &e)
		if e.ExitCode != c.code || e.Started || e.Reason == nil || !strings.Contains(string(k.Bytes(2)), *e.Reason) ||
			len(k.Events) != 0 {
			t.Fatalf("%v: %+v %q", c.argv, e, k.Bytes(2))
		}
	}
}

func TestTimeout(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
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
			p := testdriver.Shell("s", c.text)
			p["timeout_s"] = 2.0
			begun := time.Now()
			var e testdriver.Exit
			k := d.Begin("exec.run", p, 1<<20)
			if err := k.Finish(&e); err != nil {
				t.Fatal(err)
			}
			if !e.TimedOut || e.Canceled || e.ExitCode != c.code && e.ExitCode != 137 || e.Killed == nil ||
				e.Killed.Left != 0 || string(k.Bytes(1)) != "before\n" {
				t.Fatalf("%+v %+v %q", e, e.Killed, k.Bytes(1))
			}
			if took := time.Since(begun); took > 30*time.Second {
				t.Fatal(took)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Begin("exec.run", testdriver.Shell("s", "echo partial; sleep 1000 & setsid sleep 1000 & wait"), 1<<20)
	k.Until("the start", func() bool { return len(k.Events) == 1 })
	k.Cancel()
	var e testdriver.Exit
	if err := k.Finish(&e); err != nil || !e.Canceled || e.TimedOut || e.Killed == nil || e.Killed.Left != 0 ||
		e.ExitCode < 128 {
		t.Fatalf("%v %+v", err, e)
	}
	var left struct{ Processes []struct{ PID int } }
	d.Call("slot.processes", testdriver.Params{"slot": "s"}, &left)
	if len(left.Processes) != 0 {
		t.Fatalf("%+v", left)
	}
}

func TestGrandchildHoldsOutput(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	begun := time.Now()
	e, out, _ := d.Sh("s", `echo first; (sleep 0.3; i=0; while [ $i -lt 20000 ]; do echo "a line that nobody reads $i"; i=$((i+1)); done; echo survived > after) & exit 3`)
	if e.ExitCode != 3 || out != "first\n" || time.Since(begun) > 30*time.Second {
		t.Fatalf("%+v %q", e, out)
	}
	// It neither blocked on the pipe nor was it killed by it.
	_, out, _ = d.Sh("s", "for i in $(seq 200); do [ -s after ] && break; sleep 0.05; done; cat after")
	if out != "survived\n" {
		t.Fatalf("%q", out)
	}
}

func TestEndlessGrandchildDoesNotHoldTheAnswer(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	e, out, _ := d.Sh("s", "yes & echo $! ; sleep 0.05; exit 0")
	if e.ExitCode != 0 || len(out) == 0 {
		t.Fatalf("%+v", e)
	}
	var r struct{ Clean bool }
	d.Call("slot.reset", testdriver.Params{"slot": "s"}, &r)
}

func TestStdin(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	run := func(p testdriver.Params, input []byte) (testdriver.Exit, *testdriver.Talk) {
		t.Helper()
		p["stdin"] = true
		k := d.Begin("exec.run", p, 1<<20)
		go k.Send(input, true)
		var e testdriver.Exit
		if err := k.Finish(&e); err != nil {
			t.Fatal(err)
		}
		return e, k
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 50<<20/16)
	sum := sha256.Sum256(big)
	if _, k := run(testdriver.Shell("s", "sha256sum"), big); !strings.HasPrefix(string(k.Bytes(1)), hex.EncodeToString(sum[:])) {
		t.Fatalf("%q", k.Bytes(1))
	}
	if e, k := run(testdriver.Shell("s", "cat"), nil); e.ExitCode != 0 || len(k.Bytes(1)) != 0 {
		t.Fatalf("%+v", e)
	}
	for _, text := range []string{"true", "sleep 0.1; echo never read", "head -c 10 >/dev/null; exec <&-; sleep 0.1"} {
		if e, _ := run(testdriver.Shell("s", text), big[:8<<20]); e.ExitCode != 0 {
			t.Fatalf("%s: %+v", text, e)
		}
	}
	if _, out, _ := d.Sh("s", "cat; readlink /proc/self/fd/0"); out != "/dev/null\n" {
		t.Fatalf("%q", out)
	}
}

func TestOutputOverTheLimit(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "seq 1000000; seq 5 >&2")
	p["output_limit_bytes"] = 1000
	var e testdriver.Exit
	k := d.Call("exec.run", p, &e)
	out := string(k.Bytes(1))
	if e.Stdout != (testdriver.Kept{Total: 6888896, Head: 400, Tail: 600}) || len(out) != 1000 || !strings.HasPrefix(out, "1\n2\n") ||
		!strings.HasSuffix(out, "\n1000000\n") {
		t.Fatalf("%+v %q", e, out)
	}
	if e.Stderr != (testdriver.Kept{Total: 10, Head: 10, Tail: 0}) || string(k.Bytes(2)) != "1\n2\n3\n4\n5\n" || e.Segments != nil ||
		e.Merged == nil || e.Merged.Total != 6888906 {
		t.Fatalf("%+v", e)
	}
	merged := string(k.Bytes(3))
	if len(merged) != 1000 || !strings.HasPrefix(merged, "1\n2\n") || e.Spill == nil {
		t.Fatalf("%q %v", merged, e.Spill)
	}
	_, out, _ = d.Sh("s", "seq 1000000 | cmp - "+*e.Spill+" && stat -c %s "+*e.Spill)
	if out != "6888896\n" {
		t.Fatalf("%q", out)
	}
}

func TestMergedOrder(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	var e testdriver.Exit
	p := testdriver.Shell("s", "echo a; sleep 0.5; echo b >&2; sleep 0.5; echo c")
	k := d.Call("exec.run", p, &e)
	if fmt.Sprint(e.Segments) != "[[1 2] [2 2] [1 2]]" || string(k.Bytes(1)) != "a\nc\n" ||
		string(k.Bytes(2)) != "b\n" {
		t.Fatalf("%+v", e)
	}
	p["merge_stderr"], e = true, testdriver.Exit{}
	k = d.Call("exec.run", p, &e)
	if string(k.Bytes(1)) != "a\nb\nc\n" || e.Stderr.Total != 0 || fmt.Sprint(e.Segments) != "[[1 6]]" {
		t.Fatalf("%+v %q", e, k.Bytes(1))
	}
}

func TestStreamedOutputUnderCredit(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "head -c 100000000 /dev/zero; echo err >&2")
	p["stream"] = true
	k := d.Begin("exec.run", p, 256<<10)
	k.Mu.Lock()
	k.Manual = true
	k.Mu.Unlock()
	k.Until("a full window", func() bool { return k.Position >= 256<<10 })
	time.Sleep(50 * time.Millisecond)
	k.Mu.Lock()
	if k.Position > 256<<10+2*65536 {
		t.Errorf("%d bytes without credit", k.Position)
	}
	k.Manual = false
	k.Grant()
	k.Mu.Unlock()
	var e testdriver.Exit
	if err := k.Finish(&e); err != nil || len(k.Bytes(5)) != 100000000 || string(k.Bytes(6)) != "err\n" ||
		e.Stdout.Total != 100000000 {
		t.Fatalf("%v %+v %d", err, e, len(k.Bytes(5)))
	}
}

func TestTinyAlternatingWritesStayCheap(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	p := testdriver.Shell("s", "i=0; while [ $i -lt 3000 ]; do echo -n o; echo -n e >&2; i=$((i+1)); done")
	p["stream"] = true
	var e testdriver.Exit
	k := d.Begin("exec.run", p, 1<<20)
	if err := k.Finish(&e); err != nil || len(k.Bytes(5)) != 3000 || len(k.Bytes(6)) != 3000 || e.Stdout.Total != 3000 {
		t.Fatal(err, e)
	}
}

func TestResetEndsWhatRuns(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Begin("exec.run", testdriver.Shell("s", "sleep 1000"), 1<<20)
	k.Until("the start", func() bool { return len(k.Events) == 1 })
	var proc struct{ Process string }
	d.Call("proc.spawn", testdriver.Shell("s", "echo on; sleep 1000"), &proc)
	var opened struct{ Session string }
	d.Call("session.open", testdriver.Params{"slot": "s"}, &opened)
	w := d.Begin("proc.follow", testdriver.Params{"process": proc.Process, "stream": 1, "offset": 0}, 1<<20)
	w.Until("output", func() bool { return w.Data[1] != nil })
	var r struct {
		Clean  bool
		Killed struct{ Found, Left int }
	}
	d.Call("slot.reset", testdriver.Params{"slot": "s"}, &r)
	for _, k := range []*testdriver.Talk{k, w} {
		if err := k.Finish(nil); err == nil || err.Kind != "slot_closed" {
			t.Fatal(err)
		}
	}
	d.Fails("no_process", "proc.wait", testdriver.Params{"process": proc.Process})
	p := testdriver.Shell("s", "true")
	p["session"] = opened.Session
	d.Fails("no_session", "exec.run", p)
	if _, out, _ := d.Sh("s", "echo again"); out != "again\n" {
		t.Fatal(out)
	}
	d.Call("slot.destroy", testdriver.Params{"slot": "s"}, nil)
	d.Fails("no_slot", "exec.run", testdriver.Shell("s", "true"))
	d.Fails("no_slot", "slot.reset", testdriver.Params{"slot": "s"})
}

func TestKillAll(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	k := d.Begin("exec.run", testdriver.Shell("s", "sleep 1000"), 1<<20)
	k.Until("the start", func() bool { return len(k.Events) == 1 })
	var r struct {
		Killed struct{ Found, Killed, Left int }
	}
	d.Call("slot.kill_all", testdriver.Params{"slot": "s"}, &r)
	if r.Killed.Found == 0 || r.Killed.Left != 0 {
		t.Fatalf("%+v", r)
	}
	var e testdriver.Exit
	if err := k.Finish(&e); err != nil || e.ExitCode != 137 || e.Signal == nil || *e.Signal != 9 || e.TimedOut {
		t.Fatalf("%v %+v", err, e)
	}
}

func TestManyAtOnce(t *testing.T) {
	_, d := testdriver.Open(t)
	for i := range 4 {
		d.Slot(fmt.Sprint("s", i))
	}
	var all []*testdriver.Talk
	for i := range 64 {
		all = append(all, d.Begin("exec.run",
			testdriver.Shell(fmt.Sprint("s", i%4), fmt.Sprintf("echo out %d; echo err %d >&2; exit %d", i, i, i)), 1<<20))
	}
	for i, k := range all {
		var e testdriver.Exit
		if err := k.Finish(&e); err != nil || e.ExitCode != i || string(k.Bytes(1)) != fmt.Sprintf("out %d\n", i) ||
			string(k.Bytes(2)) != fmt.Sprintf("err %d\n", i) {
			t.Fatalf("%d: %v %+v %q", i, err, e, k.Bytes(1))
		}
	}
}

func TestSignalDeathIsNoTimeout(t *testing.T) {
	_, d := testdriver.Open(t)
	d.Slot("s")
	e, _, _ := d.Sh("s", "kill -SEGV $$")
	if e.ExitCode != 139 || e.Signal == nil || *e.Signal != 11 || e.TimedOut || e.Killed != nil {
		t.Fatalf("%+v", e)
	}
}
