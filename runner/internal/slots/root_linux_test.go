package slots

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
	"hermes-exec/runner/internal/testsandbox"
)

// ownRoot is a sandbox whose slots have roots of their own over this machine's
// files, and the slot "a" of a user.
func ownRoot(t *testing.T, user string) (*sandbox, SlotFacts) {
	t.Helper()
	testsandbox.Skip(t)
	b := newSandbox(t, probed())
	if _, err := b.ownRootImage(false); err != nil {
		t.Skip(err)
	}
	return b, b.create(rootParams("a", user))
}

func rootParams(slot, user string) CreateParams {
	return CreateParams{Slot: slot, Level: "auto", Network: true, User: user, OwnRoot: true, Workspace: "/workspace"}
}

func TestInTheSandboxOwnRootIsTheTenants(t *testing.T) {
	b, facts := ownRoot(t, "")
	if facts.UID != 0 || facts.Home != "/root" || facts.Workspace != "/workspace" || facts.Tmp != "/tmp" ||
		facts.Isolation.Level != isolation.Namespaces || !strings.HasPrefix(facts.Isolation.Filesystem, "own root") {
		t.Errorf("%+v", facts)
	}
	b.create(rootParams("b", ""))
	mark := filepath.Base(t.TempDir())
	write := "for d in / /etc /usr/local /root /tmp /var/tmp /dev/shm /workspace; do echo x > $d/" + mark + " || exit; done; "
	if out := b.sh("a", write+"rm -rf /usr/share/doc && chown 4000000000:12 /etc/"+mark+" && stat -c %u:%g /etc/"+
		mark); out != "4000000000:12" {
		t.Errorf("%q", out)
	}
	see := "for d in / /etc /usr/local /root /tmp /var/tmp /dev/shm /workspace; do ls $d; done | grep -c " + mark + "; true"
	if out := b.sh("b", see); out != "0" {
		t.Errorf("a neighbour sees %s files", out)
	}
	for _, dir := range []string{"/", "/etc", "/root", "/tmp"} {
		if _, err := os.Lstat(filepath.Join(dir, mark)); err == nil {
			t.Errorf("%s of the sandbox was written to", dir)
		}
	}
	for range 3 {
		if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
			t.Fatalf("%+v %v", r, err)
		}
		if out := b.sh("a", see); out != "0" {
			t.Errorf("%s files are left by a reset", out)
		}
		b.sh("a", write+"mkdir -m 0 /locked && setsid -f sleep 1000 >/dev/null 2>&1")
	}
}

func TestInTheSandboxOwnRootOfAnImagesUser(t *testing.T) {
	b, facts := ownRoot(t, "daemon")
	if facts.UID != 1 || facts.UserName != "daemon" || facts.Home != "/usr/sbin" {
		t.Errorf("%+v", facts)
	}
	out := b.sh("a", "id -u; touch mine && stat -c %u mine; touch /etc/x 2>&1; grep CapEff /proc/self/status")
	if !strings.HasPrefix(out, "1\n1\n") || !strings.Contains(out, "ermission denied") ||
		!strings.Contains(out, "CapEff:\t0000000000000000") {
		t.Error(out)
	}
	if out := b.as("a", "root", "id -u; cat /proc/self/uid_map"); !strings.HasPrefix(out, "0\n") ||
		!strings.Contains(out, "4294967295") {
		t.Error(out)
	}
}

func (b *sandbox) as(slot, user, script string) string {
	c, err := b.spawn(slot, func(s *ipc.Spawn) { s.User, s.Cwd = user, "/" }, "/bin/sh", "-c", script)
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.out.Close()
	<-c.exit
	buf := make([]byte, 4096)
	n, _ := c.out.Read(buf)
	return strings.TrimSpace(string(buf[:n]))
}

// A tenant that is root may send its init any signal, and is its user.
func TestInTheSandboxOwnRootInitIsOutOfReach(t *testing.T) {
	b, _ := ownRoot(t, "")
	out := b.sh("a", "for n in $(seq 1 64); do kill -$n 1 2>/dev/null; done; cat /proc/1/environ 2>&1; "+
		"ls /proc/1/root/ 2>&1; ls -l /proc/1/exe 2>&1; echo 1 2>/dev/null > /proc/sys/kernel/sysrq || echo kept")
	t.Log(out)
	if strings.Count(out, "ermission denied") != 3 || !strings.HasSuffix(out, "kept") {
		t.Error(out)
	}
	if out := b.sh("a", "echo goes on"); out != "goes on" {
		t.Error(out)
	}
}

// Links of /proc lead to files that the agent has open, with the agent's rights.
func TestInTheSandboxOwnRootFollowsNoLinkToDescriptors(t *testing.T) {
	b, _ := ownRoot(t, "")
	for _, link := range []string{"/proc/self/fd/2", "/proc/1/fd/2", "/proc/self/root/etc/passwd", "/proc/1/cwd/etc/passwd",
		"/proc/thread-self/fd/2"} {
		b.sh("a", "ln -sfn "+link+" /tmp/link; ln -sfn "+filepath.Dir(link)+" /tmp/dir")
		for _, path := range []string{"/tmp/link", "/tmp/dir/" + filepath.Base(link), link} {
			var out any
			err := b.call("a", ipc.OpFile, ipc.FileOp{Method: "file.read", Params: []byte(`{"path": "` + path +
				`", "offset": 0, "length": 10}`)}, &out)
			if err == nil || !strings.Contains(err.Error(), "symbolic links") &&
				!(strings.HasPrefix(link, "/proc/1/") && strings.Contains(err.Error(), "no such file")) {
				t.Errorf("%s (%s): %v %v", path, link, out, err)
			}
		}
		_, err := b.spawn("a", func(s *ipc.Spawn) { s.Cwd = ipc.Bytes(filepath.Dir(link) + "/../root") }, "/bin/true")
		if err == nil {
			t.Errorf("a command ran in %s/../root", filepath.Dir(link))
		}
	}
}

func TestInTheSandboxOwnRootLimitsProcesses(t *testing.T) {
	testsandbox.Skip(t)
	if !limits.HasOwnPIDLimit() {
		t.Skip("this kernel has one highest process number for the whole machine")
	}
	facts := probed()
	facts.Cgroups = nil
	b := newSandbox(t, facts)
	p := rootParams("few", "")
	most := int64(20)
	p.Limits.PIDs = &most
	if facts := b.create(p); !strings.Contains(facts.Isolation.Limits["pids"], "numbers") {
		t.Errorf("%+v", facts.Isolation.Limits)
	}
	before, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.spawn("few", nil, "/bin/sh", "-c",
		"i=0; while [ $i -lt 500 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done; exec sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	<-c.exit // of a shell that cannot fork
	var list ipc.Processes
	if err := b.call("few", ipc.OpProcesses, struct{}{}, &list); err != nil {
		t.Fatal(err)
	}
	// On a busy machine the agent may have taken some numbers for threads of its own.
	if n := len(list.Processes); n >= int(most) || n < int(most)-4 {
		t.Errorf("%d processes were started", n)
	}
	if now, err := os.ReadFile("/proc/sys/kernel/pid_max"); err != nil || string(now) != string(before) {
		t.Errorf("the machine's highest process number is %s, was %s", now, before)
	}
}
