package slots

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
)

// TestAsAnOrdinaryUser runs the other tests again as an unprivileged user.
func TestAsAnOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this is an ordinary user")
	}
	if testing.Short() {
		t.Skip("the other tests run once in a short run")
	}
	t.Parallel() // with TestExclusiveSandbox: both mostly wait
	if _, err := os.Lstat("/dev/nvidia0"); err != nil {
		makeGPUs(t)
	}
	dir, err := os.MkdirTemp("/tmp", "slots-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/slots.test", program, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.count=1", "-test.skip=TestAsAnOrdinaryUser|HugeTree|HugeDirectory"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.Command(dir+"/slots.test", args...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=/tmp"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if testing.Verbose() {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestBubblewrap is for hosts on which only bubblewrap may make namespaces.
func TestBubblewrap(t *testing.T) {
	path, err := exec.LookPath("bwrap")
	if err != nil || os.Geteuid() == 0 {
		t.Skip("needs bubblewrap and an ordinary user")
	}
	f := probed()
	f.Method, f.BwrapPath, f.Bubblewrap = isolation.MethodBwrap, path, true
	b := newSandbox(t, f)
	facts := b.create(CreateParams{Slot: "a", Level: isolation.Namespaces, PrivateRoot: true})
	out := b.sh("a", "echo $$ > pid; id -un; pwd; ls /home; cat /proc/1/environ 2>/dev/null | tr -d '\\0'; touch /x "+
		"/usr/x /etc/x 2>/dev/null; echo $?; grep -c : /proc/net/dev; setsid -f sleep 1000 >/dev/null 2>&1; ls -d "+
		"/root /var/lib/dpkg 2>/dev/null | wc -l")
	if want := "slot\n/workspace\n" + facts.UserName + "\n1\n1\n0"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
	if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean || r.Killed.Killed != 1 {
		t.Errorf("%+v %v", r, err)
	}
	b.sh("a", "test ! -e pid")
	if _, err := b.spawn("a", nil, "sleep", "1000"); err != nil {
		t.Fatal(err)
	}
}

// Resources that the kernel counts by user without an rlimit are limited by the slot's user
// namespace.
func TestSlotHasItsShareOfAnOrdinaryUsersNamespaces(t *testing.T) {
	f := probed()
	most, ok := limits.NamespaceShare()["max_user_namespaces"]
	if f.Method != isolation.MethodSelf || !ok {
		t.Skip("needs an ordinary user who may make namespaces")
	}
	b := newSandbox(t, f)
	b.create(CreateParams{Slot: "a", Level: isolation.Namespaces, PrivateRoot: true})
	out := b.sh("a", "echo 9 2>/dev/null >/proc/sys/user/max_user_namespaces; cat /proc/sys/user/max_user_namespaces")
	if want := strconv.FormatInt(most, 10); out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// Without namespaces and without root, Landlock closes the files of the runner's user and of other
// slots.
func TestLandlock(t *testing.T) {
	f := probed()
	if !f.Confine || os.Geteuid() == 0 {
		t.Skip("needs Landlock and an ordinary user")
	}
	f.Method, f.Switch, f.Highest = isolation.MethodNone, false, isolation.Landlock
	b := newSandbox(t, f)
	home := t.TempDir()
	precious := filepath.Join(home, "precious")
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := b.create(CreateParams{Slot: "b", Level: "auto", PrivateRoot: true, Network: true})
	b.sh("b", "echo secret > s")
	facts := b.create(CreateParams{Slot: "a", Level: "auto", Floor: isolation.Landlock, PrivateRoot: true, Network: true})
	if facts.Isolation.Level != isolation.Landlock {
		t.Fatalf("%+v", facts.Isolation)
	}
	out := b.sh("a", "for f in "+precious+" "+string(other.Workspace)+"/s; do cat $f; rm -f $f; sh -c 'true > '$f; "+
		"truncate -s 0 $f; mv $f here; ln $f here; done 2>/dev/null; ls "+home+" "+string(other.Workspace)+
		" 2>/dev/null; touch /tmp/x-landlock /dev/shm/x 2>/dev/null; cat /etc/hostname >/dev/null && ls /usr >/dev/null && echo works")
	if out != "works" {
		t.Errorf("%q", out)
	}
	for _, path := range []string{precious, string(other.Workspace) + "/s"} {
		if data, err := os.ReadFile(path); err != nil || len(data) == 0 {
			t.Errorf("%s: %q %v", path, data, err)
		}
	}
	out = b.sh("a", "echo a > f; mkdir d; mv f d; ln -s d/f l; cat l; mkfifo p; rm -r d l p; echo x > $HOME/h; "+
		"echo y > $TMPDIR/t; cat $HOME/h $TMPDIR/t; echo z > /dev/null; sh -c 'echo sub'")
	if out != "a\nx\ny\nsub" {
		t.Errorf("%q", out)
	}
	if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
		t.Errorf("%+v %v", r, err)
	}
	if out := b.sh("a", "ls -A; ls -A $HOME"); out != "" {
		t.Errorf("%q", out)
	}
}

func TestNoLevelIsTakenBelowTheFloor(t *testing.T) {
	f := isolation.Facts{Highest: isolation.None, Reasons: map[string]string{
		isolation.Namespaces: "the kernel setting user.max_user_namespaces is 0", isolation.Landlock: "too old"}}
	b := newSandbox(t, f)
	p := CreateParams{Slot: "a", Level: "auto", Floor: isolation.Landlock, PrivateRoot: true, Network: true}
	_, err := b.Create(context.Background(), p)
	if err == nil || !strings.Contains(err.Error(), "user.max_user_namespaces is 0") ||
		!strings.Contains(err.Error(), `min_isolation="none"`) {
		t.Errorf("%v", err)
	}
	p.Floor = isolation.None
	if os.Geteuid() == 0 {
		p.PrivateRoot = false
	}
	if facts, err := b.Create(context.Background(), p); err != nil || facts.Isolation.Level != isolation.None {
		t.Errorf("%+v %v", facts, err)
	}
}

// The kernel counts the processes of an ordinary user in the slot's user namespace only, so the
// default limit holds.
func TestDefaultLimitOfProcessesHoldsForAnOrdinaryUser(t *testing.T) {
	f := probed()
	if f.Method != isolation.MethodSelf || !limits.CountsByNamespace() || f.Cgroup != "none" {
		t.Skip("needs an ordinary user who may make namespaces and no cgroups")
	}
	for range 60 { // of the same user, outside
		other := exec.Command("sleep", "60")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	}
	b := newSandbox(t, f)
	facts := b.create(CreateParams{Slot: "a", Level: isolation.Namespaces, PrivateRoot: true, Network: true,
		Limits: ipc.Limits{PIDs: ptr[int64](50)}, DefaultLimits: []string{"pids"}})
	b.sh("a", "(for i in $(seq 120); do sleep 60 & done) 2>/dev/null; :")
	r, err := b.Reset(context.Background(), "a")
	if err != nil || r.Killed.Killed < 25 || r.Killed.Killed > 50+limits.AgentThreads {
		t.Errorf("%+v of at most 50 (%v), limits %v", r.Killed, err, facts.Isolation.Limits)
	}
}
