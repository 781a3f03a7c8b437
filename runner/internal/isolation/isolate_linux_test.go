package isolation

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/proc"
)

func TestLookupUser(t *testing.T) {
	for name, want := range map[string]User{
		"":           {Name: "root", UID: 0, GID: 0},
		"root":       {Name: "root", UID: 0, GID: 0},
		"0":          {Name: "root", UID: 0, GID: 0},
		"nobody":     {Name: "nobody", UID: 65534, GID: 65534},
		"4242":       {Name: "4242", UID: 4242, GID: 0},
		"4242:77":    {Name: "4242", UID: 4242, GID: 77},
		"nobody:tty": {Name: "nobody", UID: 65534, GID: 5},
	} {
		got, err := LookupUser(name)
		if err != nil || got.Name != want.Name || got.UID != want.UID || got.GID != want.GID {
			t.Errorf("%q: %+v %v", name, got, err)
		}
	}
	for _, name := range []string{"no-such-user", "-1", "4294967295", "root:no-such-group", ":", "99999999999"} {
		if got, err := LookupUser(name); err == nil && name != ":" {
			t.Errorf("%q: %+v", name, got)
		}
	}
}

func TestUnescapeMount(t *testing.T) {
	for in, want := range map[string]string{`/a`: "/a", `/a\040b`: "/a b", `/a\134b`: `/a\b`, `/a\9`: `/a\9`} {
		if got := proc.Unescape(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestEtcIsAnAllowList(t *testing.T) {
	root := t.TempDir()
	if err := copyEtc(root, "/etc/shadow", nil); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copyEtc(root, secret, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/etc/shadow", secret} {
		if _, err := os.Lstat(root + path); err == nil {
			t.Errorf("%s was copied although others may not read it", path)
		}
	}
	for _, list := range [][]string{etcFiles, etcDirs, etcSingles} {
		for _, name := range list {
			if strings.Contains(name, "shadow") || strings.Contains(name, "private") || strings.Contains(name, "ssh") ||
				strings.Contains(name, "sudo") {
				t.Errorf("%s is on the list", name)
			}
		}
	}
}

// With no descriptor left nothing can be tried, which says nothing about the box.
func TestTrialWithoutMeansProvesNothing(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := syscall.Rlimit{Cur: 0, Max: before.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	facts, err := Probe()
	_, trial := tryIn(WaySelf, 0, ProbeArg)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if !ipc.Lacks(err) {
		t.Errorf("%v, %+v", err, facts)
	}
	if !ipc.Lacks(trial) {
		t.Error(trial)
	}
}
