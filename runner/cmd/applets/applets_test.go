package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("APPLETS_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

func execute(t *testing.T, stdin string, args ...string) (string, int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), "APPLETS_MAIN=1")
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestApplets(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		stdin string
		args  []string
		want  string
		code  int
	}{
		{"", []string{"echo", "a", "b"}, "a b\n", 0}, {"", []string{"exit", "7"}, "", 7},
		{"xyz", []string{"count"}, "3\n", 0},
		{"in", []string{"cat"}, "in", 0}, {"", []string{"spew", "23"}, "01234567890123456789012", 0},
		{"", []string{"nothing"}, "no such applet\n", 2},
		{"", []string{"open", dir + "/none", "r"}, "ENOENT\n", 0}, {"", []string{"open", dir + "/new", "c"}, "ok\n", 0},
		{"", []string{"signal", "15"}, "", -1}, {"", []string{"tty"}, "no\n", 0},
		{"", []string{"kill", "99999999", "0"}, "ESRCH\n", 0},
		{"", []string{"alternate", "1", "0"}, "out 0\nerr 0\n", 0}, {"", []string{"fill", dir + "/f", "1"}, "ok\n", 0},
		{"", []string{"dial", "127.0.0.1", "1"}, "ECONNREFUSED\n", 0},
	} {
		if out, code := execute(t, c.stdin, c.args...); out != c.want || code != c.code {
			t.Errorf("%v: %q %d", c.args, out, code)
		}
	}
}
