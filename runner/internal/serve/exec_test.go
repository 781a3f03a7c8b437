package serve_test

import (
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	e, out, errs := d.sh("s", "echo hello; echo oops >&2; exit 3")
	if e.ExitCode != 3 || out != "hello\n" || errs != "oops\n" || !e.Started || e.TimedOut || e.Canceled || e.Signal != nil {
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
	k := d.call("exec.run", params{"slot": "s", "argv": []any{"sh", "-c", `printf '%s|%s|%s' "$1" "$X" "$PWD"`, "sh", map[string]string{"b64": "/yE="}}, "env": params{"X": "a b"}}, &e)
	want := "\xff!|a b|" + facts["workspace"].(string)
	if got := string(k.bytes(1)); got != want {
		t.Fatalf("%q, expected %q", got, want)
	}
}

func TestLongScriptsFollowTheSameRules(t *testing.T) {
	_, d := open(t)
	d.slot("s")
	for _, size := range []int{10, 70 << 10, 5 << 20} {
		text := "echo $0 $#; ls -l /proc/self/fd | grep -c memfd; false; x='" + strings.Repeat("y", size) + "'; echo ${#x}; exit 7"
		e, out, errs := d.sh("s", text)
		lines := strings.Fields(out)
		if e.ExitCode != 7 || len(lines) != 4 || !strings.HasSuffix(lines[0], "bash") || lines[1] != "0" || lines[2] != "0" {
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
