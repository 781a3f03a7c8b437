package slots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hermes-exec/runner/internal/agent"
	"hermes-exec/runner/internal/initproc"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/proc"
	"hermes-exec/runner/internal/testsandbox"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		if os.Remove(stillFile(os.Getppid())) == nil {
			for {
				time.Sleep(time.Hour)
			}
		}
		os.Exit(agent.Main(os.Args[2:]))
	}
	// As in the runner, this process is undumpable, and its children must work all the same.
	initproc.Init(initproc.Options{Subreaper: true})
	testsandbox.Enter()
	os.Exit(m.Run())
}

// stillFile makes the next agent without namespaces of the test with this
// process number stand still.
func stillFile(pid int) string { return fmt.Sprintf("/tmp/slots-test-still-%d", pid) }

func TestAgentThatDoesNotGetReadyIsGivenUp(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.None, Network: true, PrivateRoot: true})
	tooSlow := func(ctx context.Context) {
		t.Helper()
		if err := os.WriteFile(stillFile(os.Getpid()), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := b.Agent(ctx, "a")
		if err == nil || kind(err) != "exhausted " || !strings.Contains(err.Error(), "it took too long") {
			t.Error(err)
		}
		_ = os.Remove(stillFile(os.Getpid())) // a slow agent has not come as far
	}
	b.setupTimeout = 200 * time.Millisecond
	tooSlow(context.Background())
	b.setupTimeout = setupTimeout
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(200*time.Millisecond, func() { cancel(errors.New("the time of the command is over")) })
	tooSlow(ctx)
	if out := b.sh("a", "echo on"); out != "on" {
		t.Errorf("%q", out)
	}
}

// An agent that is killed before it is ready, as by the kernel for lack of memory, proves nothing
// about the sandbox.
func TestAgentKilledBeforeItIsReadyIsNoMatterOfIsolation(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.None, Network: true, PrivateRoot: true})
	if err := os.WriteFile(stillFile(os.Getpid()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		_, err := b.Agent(context.Background(), "a")
		failed <- err
	}()
	for {
		select {
		case err := <-failed:
			if kind(err) != "exhausted " || !strings.Contains(err.Error(), "signal 9") {
				t.Error(kind(err), err)
			}
			return
		default:
		}
		if _, err := os.Lstat(stillFile(os.Getpid())); err == nil {
			continue // it has not come as far
		}
		children, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range children {
			pids, _ := os.ReadFile(file)
			for pid := range strings.FieldsSeq(string(pids)) {
				if n, err := strconv.Atoi(pid); err == nil {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
		}
	}
}

var probed = sync.OnceValue(func() isolation.Facts {
	facts, err := isolation.Probe()
	if err != nil {
		panic(err)
	}
	return facts
})

// sandbox is a Manager with helpers to run commands in its slots.
type sandbox struct {
	*Manager
	t      *testing.T
	mu     sync.Mutex
	token  uint64
	exits  map[uint64]chan ipc.Exit
	deaths chan string
}

func newSandbox(t *testing.T, facts isolation.Facts) *sandbox {
	t.Helper()
	base := passableDir(t)
	m, err := NewManager(base, facts, os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	b := sandboxOf(t, m)
	t.Cleanup(func() {
		receipt := m.Close(context.Background())
		if receipt.Left != 0 {
			t.Errorf("close left %d processes", receipt.Left)
		}
		if _, err := os.Lstat(base); !os.IsNotExist(err) {
			t.Errorf("base directory is left: %v", err)
		}
	})
	return b
}

// sandboxOf hears of the exits and deaths in the slots of m.
func sandboxOf(t *testing.T, m *Manager) *sandbox {
	b := &sandbox{Manager: m, t: t, exits: map[uint64]chan ipc.Exit{}, deaths: make(chan string, 16)}
	m.OnExit(func(_ string, e ipc.Exit) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.exits[e.Token] <- e
	})
	m.OnDeath(func(slot string, why *ipc.Error) { b.deaths <- slot + ": " + why.Message })
	return b
}

// passableDir is a directory that every user can pass through.
func passableDir(t testing.TB) string {
	t.Helper()
	base, err := os.MkdirTemp("/tmp", "slots-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	return base
}

func (b *sandbox) create(p CreateParams) SlotFacts {
	b.t.Helper()
	if p.Level == isolation.None && !p.PrivateRoot {
		b.t.Fatal("such a slot is for containers: all that its user starts is its own, here all of root's processes")
	}
	facts, err := b.Create(context.Background(), p)
	if err != nil {
		b.t.Fatal(err)
	}
	return facts
}

// command is a started command.
type command struct {
	token   uint64
	spawned ipc.SpawnResult
	exit    chan ipc.Exit
	out     *os.File
}

func (b *sandbox) spawn(slot string, change func(*ipc.Spawn), argv ...string) (command, error) {
	b.t.Helper()
	h, err := b.Agent(context.Background(), slot)
	if err != nil {
		return command{}, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		b.t.Fatal(err)
	}
	defer null.Close()
	b.mu.Lock()
	b.token++
	c := command{token: b.token, exit: make(chan ipc.Exit, 1), out: r}
	b.exits[c.token] = c.exit
	b.mu.Unlock()
	s := ipc.Spawn{Token: c.token, Cwd: ipc.Bytes(h.Workdir())}
	for _, a := range argv {
		s.Argv = append(s.Argv, ipc.Bytes(a))
	}
	for _, e := range h.Env {
		s.Env = append(s.Env, ipc.Bytes(e))
	}
	if change != nil {
		change(&s)
	}
	_, err = h.Call(context.Background(), ipc.OpSpawn, s, &c.spawned, int(null.Fd()), int(w.Fd()), int(w.Fd()))
	if err != nil {
		r.Close()
	}
	return c, err
}

// run waits for the command and returns its output and exit.
func (b *sandbox) run(slot string, argv ...string) (string, ipc.Exit) {
	b.t.Helper()
	c, err := b.spawn(slot, nil, argv...)
	if err != nil {
		b.t.Fatalf("%q: %v", argv, err)
	}
	defer c.out.Close()
	if !c.spawned.Started {
		return c.spawned.Reason, ipc.Exit{ExitCode: c.spawned.ExitCode}
	}
	select {
	case e := <-c.exit:
		_ = c.out.SetReadDeadline(time.Now().Add(2 * time.Second))
		out := make([]byte, 1<<20)
		total := 0
		for total < len(out) {
			n, err := c.out.Read(out[total:])
			total += n
			if err != nil {
				break
			}
		}
		return string(out[:total]), e
	case <-time.After(60 * time.Second):
		b.t.Fatalf("%q does not end", argv)
	}
	return "", ipc.Exit{}
}

func (b *sandbox) sh(slot, script string) string {
	b.t.Helper()
	out, e := b.run(slot, "/bin/sh", "-c", script)
	if e.ExitCode != 0 {
		b.t.Fatalf("%s: exit %d: %s", script, e.ExitCode, out)
	}
	return strings.TrimSpace(out)
}

func (b *sandbox) call(slot, op string, in, out any) error {
	b.t.Helper()
	h, err := b.Agent(context.Background(), slot)
	if err != nil {
		return err
	}
	_, err = h.Call(context.Background(), op, in, out)
	return err
}

// levels are those that this machine and user can have, as a local sandbox.
func levels() []string {
	f := probed()
	out := []string{isolation.None}
	if f.Confine {
		out = append(out, isolation.Landlock)
	}
	if f.Switch {
		out = append(out, isolation.UID)
	}
	if f.Method != isolation.MethodNone {
		out = append(out, isolation.Namespaces)
	}
	return out
}

func eachLevel(t *testing.T, test func(t *testing.T, b *sandbox, facts SlotFacts)) {
	for _, level := range levels() {
		t.Run(level, func(t *testing.T) {
			b := newSandbox(t, probed())
			facts := b.create(CreateParams{Slot: "a", Level: level, Network: true, PrivateRoot: true})
			test(t, b, facts)
		})
	}
}

func TestProbeFacts(t *testing.T) {
	began := time.Now()
	f, err := isolation.Probe()
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	text, _ := json.Marshal(f)
	t.Logf("%s way=%s price=%.1f ms, probe %v", text, f.Method, f.PriceMS, took)
	if took > time.Minute {
		t.Errorf("the probe took %v", took)
	}
	if f.Highest != isolation.Namespaces && f.Reasons[isolation.Namespaces] == "" {
		t.Error("no reason why there are no namespaces")
	}
}

func TestRunAndExit(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, facts SlotFacts) {
		out, e := b.run("a", "/bin/sh", "-c", "pwd; id -u; echo $HOME $TMPDIR $USER; touch $HOME/x $TMPDIR/y z; exit 7")
		if e.ExitCode != 7 || e.Signal != 0 {
			t.Errorf("exit %+v, output %s", e, out)
		}
		want := fmt.Sprintf("%s\n%d\n%s %s %s\n", facts.Workspace, facts.UID, facts.Home, facts.Tmp, facts.UserName)
		if out != want {
			t.Errorf("got %q, want %q", out, want)
		}
		if facts.UID == 0 {
			t.Error("uid 0 was not left")
		}
		if e.MaxRSS <= 0 {
			t.Error("no rusage")
		}
		if _, e = b.run("a", "/bin/sh", "-c", "kill -9 $$"); e.ExitCode != 137 || e.Signal != 9 || e.OOMKilled {
			t.Errorf("signal: %+v", e)
		}
	})
}

func kind(err error) string {
	e := ipc.AsError(err)
	return e.Kind + " " + e.Errno
}

func TestProgramsThatCannotRun(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		b.sh("a", "echo 'not a program' > plain; chmod +x plain; printf '#!/no/such/interpreter\\n' > lost; chmod +x "+
			"lost; echo > notexec; mkdir dir")
		for program, code := range map[string]int{"no-such-program": 127, "./missing": 127, "./plain": 126,
			"./lost": 126, "./notexec": 126, "./dir": 126} {
			if reason, e := b.run("a", program); e.ExitCode != code || !strings.Contains(reason, program) {
				t.Errorf("%s: %d %q", program, e.ExitCode, reason)
			}
		}
		b.sh("a", "mkdir -m 000 shut")
		hidden, err := b.spawn("a", func(s *ipc.Spawn) { s.Env = []ipc.Bytes{"PATH=shut:/usr/bin:/bin"} },
			"no-such-program")
		if err != nil || hidden.spawned.ExitCode != 127 {
			t.Errorf("behind a directory that may not be searched: %+v %v", hidden.spawned, err)
		}
		if reason, e := b.run("a", "/bin/echo", strings.Repeat("x", 200<<10)); e.ExitCode != 126 ||
			!strings.Contains(reason, "too long") {
			t.Errorf("E2BIG: %d %q", e.ExitCode, reason)
		}
		for cwd, want := range map[string]string{"/no/such/dir": "os ENOENT", "/etc/passwd": "os ENOTDIR"} {
			_, err := b.spawn("a", func(s *ipc.Spawn) { s.Cwd = ipc.Bytes(cwd) }, "/bin/true")
			if err == nil || kind(err) != want {
				t.Errorf("%s: %v", cwd, err)
			}
		}
		if _, err := b.spawn("a", func(s *ipc.Spawn) { s.User = "root" }, "/bin/true"); err == nil ||
			kind(err) != "user " {
			t.Errorf("user root: %v", err)
		}
	})
}

func TestKillWholeTree(t *testing.T) {
	escapes := map[string]string{
		"plain":    "sleep 1000 & sleep 1000",
		"setsid":   "setsid sleep 1000 & setsid -f sh -c 'trap \"\" TERM; sleep 1000' ; sleep 1000",
		"deaf":     "trap '' TERM; (trap '' TERM; sleep 1000; sleep 1000) & while :; do sleep 1000; done",
		"stopped":  "sh -c 'kill -STOP $$; sleep 1000' & sleep 1000",
		"clean":    "env -i setsid -f sh -c '(sleep 1000 &)'; exec sleep 1000",
		"leadless": "setsid -f sleep 1000; (sleep 1000 &); exit 3",
		"unmarked": "exec bash -c 'ulimit -R 1000000; env -i setsid -f sh -c \"(sleep 1000 &)\"; exec sleep 1000'",
	}
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		other, err := b.spawn("a", nil, "sleep", "1000")
		if err != nil {
			t.Fatal(err)
		}
		for name, script := range escapes {
			c, err := b.spawn("a", nil, "/bin/sh", "-c", script+"; :")
			if err != nil {
				t.Fatal(err)
			}
			if name == "leadless" {
				<-c.exit
			}
			want := map[string]int{"plain": 3, "setsid": 5, "deaf": 3, "stopped": 3, "clean": 2, "leadless": 2,
				"unmarked": 3}[name]
			b.waitFor(func() bool { return b.count(c.token)+b.count(0) >= want-1 })
			var receipt ipc.Receipt
			if err := b.call("a", ipc.OpKill, ipc.Kill{Token: c.token, GraceS: 0.1}, &receipt); err != nil {
				t.Fatal(err)
			}
			if receipt.Left != 0 || receipt.Found == 0 || receipt.Killed != receipt.Found || receipt.DurationS > 2 {
				t.Errorf("%s: %+v", name, receipt)
			}
			t.Logf("%s: %+v", name, receipt)
		}
		var list ipc.Processes
		if err := b.call("a", ipc.OpProcesses, struct{}{}, &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Processes) != 1 || list.Processes[0].PID != other.spawned.PID ||
			list.Processes[0].Token != other.token {
			t.Errorf("left: %+v", list)
		}
	})
}

func TestKillSinceSparesOlderProcesses(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		c, err := b.spawn("a", nil, "/bin/sh", "-c", "sleep 1000 & until [ -e go ]; do sleep 0.01; done; "+
			"trap '' TERM; (setsid sleep 1001 &); : >gone; exec sleep 1002")
		if err != nil {
			t.Fatal(err)
		}
		b.sh("a", "sleep 0.05")
		since := proc.BootTicks()
		b.sh("a", ": >go; until [ -e gone ]; do sleep 0.01; done; sleep 0.05")
		for _, found := range []int{1, 0} {
			var receipt ipc.Receipt
			request := ipc.Kill{Token: c.token, GraceS: 0.1, Since: since}
			if err := b.call("a", ipc.OpKill, request, &receipt); err != nil || receipt.Found != found ||
				receipt.Left != 0 {
				t.Errorf("%v %+v", err, receipt)
			}
		}
		if left := b.count(c.token); left != 2 {
			t.Errorf("%d processes are left", left)
		}
		if err := b.call("a", ipc.OpKill, ipc.Kill{Token: c.token}, nil); err != nil {
			t.Fatal(err)
		}
	})
}

// A server without any handle keeps its own processes while other commands are killed.
func TestAKillSparesWhatAnOlderProcessStarts(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		const server = `while :; do sleep 0.05 || echo hit >>hits; : >served; done`
		b.sh("a", "bash -c 'ulimit -R 1000000; env -i setsid -f bash -c \"("+server+") &\"'; until [ -e served ]; do "+
			"sleep 0.01; done")
		for range 5 {
			c, err := b.spawn("a", nil, "sleep", "1000")
			if err != nil {
				t.Fatal(err)
			}
			b.sh("a", "rm served; until [ -e served ]; do sleep 0.01; done; sleep 0.02")
			var receipt ipc.Receipt
			if err := b.call("a", ipc.OpKill, ipc.Kill{Token: c.token}, &receipt); err != nil || receipt.Found != 1 ||
				receipt.Left != 0 {
				t.Errorf("%v %+v", err, receipt)
			}
		}
		if out := b.sh("a", "rm served; until [ -e served ]; do sleep 0.01; done; cat hits 2>/dev/null || :"); out != "" {
			t.Error("its children were killed")
		}
	})
}

func TestAgentThatStoodStillKillsAllTheSame(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.None, Network: true, PrivateRoot: true})
	c, err := b.spawn("a", nil, "/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1000; done")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	a, err := b.Agent(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	stood := make(chan error)
	go func() {
		time.Sleep(500 * time.Millisecond)
		stopped := a.Signal(syscall.SIGSTOP)
		time.Sleep(5 * time.Second) // longer than a kill may take
		stood <- errors.Join(stopped, a.Signal(syscall.SIGCONT))
	}()
	var receipt ipc.Receipt
	if err := b.call("a", ipc.OpKill, ipc.Kill{Token: c.token, GraceS: 3}, &receipt); err != nil {
		t.Fatal(err)
	}
	if err := <-stood; err != nil || receipt.Left != 0 || receipt.Found == 0 || receipt.DurationS < 5 {
		t.Errorf("%+v %v", receipt, err)
	}
}

func (b *sandbox) count(token uint64) int {
	var list ipc.Processes
	if err := b.call("a", ipc.OpProcesses, struct{}{}, &list); err != nil {
		b.t.Fatal(err)
	}
	n := 0
	for _, p := range list.Processes {
		if p.Token == token {
			n++
		}
	}
	return n
}

func (b *sandbox) waitFor(done func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatal("did not happen")
		}
	}
}

func TestTrialSlotLeavesNothing(t *testing.T) {
	for _, level := range append(levels(), isolation.Exclusive) {
		t.Run(level, func(t *testing.T) {
			b := newSandbox(t, probed())
			used := func() (names []string) {
				for _, group := range b.Manager.facts.Cgroups {
					made, _ := filepath.Glob(filepath.Join(group.Dir, b.groupName("*")))
					names = append(names, made...)
				}
				return names
			}
			p := CreateParams{Slot: "a", Level: level, Network: true, PrivateRoot: level != isolation.Exclusive, Trial: true,
				BestEffortLimits: true, Limits: ipc.Limits{PIDs: ptr[int64](1), MemoryMB: ptr[int64](1), CPUs: ptr(0.01)}}
			for range 2 {
				facts, err := b.Create(context.Background(), p)
				if err != nil || facts.Isolation.Level != level || len(facts.Isolation.Limits) != 3 {
					t.Fatalf("%+v %v", facts, err)
				}
			}
			if _, err := b.Facts("a"); err == nil {
				t.Error("the slot exists")
			}
			if entries, err := os.ReadDir(filepath.Join(b.base, "slots")); err == nil && len(entries) > 0 {
				t.Errorf("left in the directory: %v", entries)
			}
			if left := used(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if b.IsExclusive() {
				t.Error("the sandbox counts as one of an exclusive slot")
			}
		})
	}
}

func TestResetEmptiesTheSlot(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, facts SlotFacts) {
		b.sh("a", "setsid -f sleep 1000 >/dev/null 2>&1; mkdir -p shut/in; touch shut/in/f $HOME/h $TMPDIR/t; chmod "+
			"000 shut/in shut; ln -s /etc link; mkfifo p; i=0; while [ $i -lt 1000 ]; do : > f$i; i=$((i+1)); done")
		began := time.Now()
		r, err := b.Reset(context.Background(), "a")
		took := time.Since(began)
		if err != nil || !r.Clean || r.Killed.Found != 1 || r.Killed.Left != 0 {
			t.Fatalf("%+v %v", r, err)
		}
		t.Logf("reset of 1,000 files: %v, %+v", took, r.Killed)
		if got := b.sh("a", "ls -A . $HOME $TMPDIR | grep -v :$ | grep -v '^$' | wc -l; id -u"); got != fmt.Sprintf("0\n%d", r.UID) {
			t.Errorf("after reset: %q", got)
		}
		if b.count(0) > 0 {
			t.Error("processes are left")
		}
	})
}

// On a busy machine the agent is long gone before its last words are read.
func TestAReceiptMayBeReadLate(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		b.OnExit(func(string, ipc.Exit) { time.Sleep(2 * time.Second) }) // where the link is read
		if _, err := b.spawn("a", nil, "sleep", "1000"); err != nil {
			t.Fatal(err)
		}
		if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean || r.Killed.Found != 1 {
			t.Fatalf("%+v %v", r, err)
		}
	})
}

func TestAgentDeath(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		c, err := b.spawn("a", nil, "/bin/sh", "-c", "setsid -f sleep 1000; exec sleep 1000")
		if err != nil {
			t.Fatal(err)
		}
		h, err := b.Agent(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		b.waitFor(func() bool { return b.count(c.token) == 2 })
		if err := h.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case why := <-b.deaths:
			if !strings.Contains(why, "killed") {
				t.Error(why)
			}
		case <-time.After(60 * time.Second):
			t.Fatal("no word of the agent's death")
		}
		if _, err := b.spawn("a", nil, "true"); err == nil || kind(err) != "slot_died " {
			t.Errorf("after death: %v", err)
		}
		if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
			t.Fatalf("%+v %v", r, err)
		}
		b.sh("a", "true")
		facts, err := b.Facts("a")
		if err != nil {
			t.Fatal(err)
		}
		if n := strays(t, facts.UID); n != 0 && os.Geteuid() == 0 {
			t.Errorf("%d processes of the slot's uid", n)
		}
	})
}

// strays counts the living processes of a uid.
func strays(t *testing.T, uid int) int {
	t.Helper()
	n := 0
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		var st syscall.Stat_t
		stat, _ := os.ReadFile(name + "/stat")
		if syscall.Stat(name, &st) == nil && int(st.Uid) == uid && !strings.Contains(string(stat), ") Z ") {
			n++
		}
	}
	return n
}

// A scan may miss each process of a chain that forks and exits all the time, and the last one of
// the chain lives on.
func TestKillOfAChainThatForksAndExits(t *testing.T) {
	const hop = `hop() { if [ $1 = 0 ]; then exec sleep $2; fi; hop $(($1-1)) $2 & exit; }; hop `
	eachLevel(t, func(t *testing.T, b *sandbox, facts SlotFacts) {
		killed := func(chain string, after time.Duration) (ipc.Receipt, func() int) {
			c, err := b.spawn("a", nil, "/bin/sh", "-c", hop+chain)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			var receipt ipc.Receipt
			if err := b.call("a", ipc.OpKill, ipc.Kill{Token: c.token}, &receipt); err != nil {
				t.Fatal(err)
			}
			return receipt, func() int { return b.count(c.token) }
		}
		for i := range 10 {
			receipt, left := killed("60 1000", time.Duration(i)*2*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
			if n := left(); receipt.Left != 0 || n > 0 {
				t.Errorf("%d left after %+v", n, receipt)
			}
		}
		receipt, left := killed("10000 0", 20*time.Millisecond)
		t.Logf("%+v", receipt)
		if facts.Isolation.Level != isolation.None && receipt.Left != 0 {
			t.Errorf("a chain without end: %+v", receipt)
		}
		if receipt.Left == 0 && left() > 0 {
			t.Errorf("who lives on is not counted: %+v", receipt)
		}
	})
}
