package slots

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/testsandbox"
)

func TestExclusiveSandbox(t *testing.T) {
	if probed().Method != isolation.MethodDirect {
		t.Skip("no namespaces can be made for it")
	}
	t.Parallel() // with TestAsAnOrdinaryUser
	testsandbox.Run(t)
}

func exclusiveSandbox(t *testing.T, user string) (*sandbox, SlotFacts) {
	t.Helper()
	testsandbox.Skip(t)
	b := newSandbox(t, probed())
	return b, b.create(CreateParams{Slot: "a", Level: isolation.Exclusive, Network: true, User: user})
}

func TestInTheSandboxAsRoot(t *testing.T) {
	b, facts := exclusiveSandbox(t, "")
	if facts.UID != 0 || facts.UserName != "root" || facts.Isolation.Level != isolation.Exclusive {
		t.Errorf("%+v", facts)
	}
	out := b.sh("a", "id -u; id -G; grep -E '^Cap(Eff|Bnd)|NoNew' /proc/self/status; head -c 1 /proc/1/mem 2>&1; pwd")
	t.Log(out)
	if !strings.HasPrefix(out, "0\n") || !strings.Contains(out, "NoNewPrivs:\t0") ||
		!strings.Contains(out, "ermission denied") {
		t.Error(out)
	}
	asUser := func(user, script string) (string, error) {
		c, err := b.spawn("a", func(s *ipc.Spawn) { s.User, s.Cwd = user, "/" }, "/bin/sh", "-c", script)
		if err != nil {
			return "", err
		}
		defer c.out.Close()
		<-c.exit
		buf := make([]byte, 4096)
		n, _ := c.out.Read(buf)
		return strings.TrimSpace(string(buf[:n])), nil
	}
	for user, want := range map[string]string{"nobody": "65534 65534", "1234": "1234 0", "1234:5678": "1234 5678",
		"root": "0 0", "daemon:nogroup": "1 65534"} {
		if got, err := asUser(user, "echo $(id -u) $(id -g)"); err != nil || got != want {
			t.Errorf("%s: %q %v", user, got, err)
		}
	}
	if _, err := asUser("no-such-user", "true"); err == nil || kind(err) != "user " {
		t.Errorf("unknown user: %v", err)
	}
}

func TestInTheSandboxKillFindsWhatDroppedEverything(t *testing.T) {
	b, _ := exclusiveSandbox(t, "")
	other, err := b.spawn("a", nil, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/usr/bin/perl"); err != nil {
		t.Skip(err)
	}
	// Like su and daemons: no group ids, no environment, no session, no parent.
	c, err := b.spawn("a", nil, "perl", "-e",
		`$) = "0 0"; exit 0 if fork; use POSIX; POSIX::setsid(); exit 0 if fork; exec "env", "-i", "sleep", "1000"`)
	if err != nil {
		t.Fatal(err)
	}
	<-c.exit
	b.waitFor(func() bool {
		var list ipc.Processes
		if err := b.call("a", ipc.OpProcesses, struct{}{}, &list); err != nil {
			t.Fatal(err)
		}
		asleep := 0
		for _, p := range list.Processes {
			if len(p.Argv) > 0 && p.Argv[0] == "sleep" {
				asleep++
			}
		}
		return asleep == 2 && len(list.Processes) == 2
	})
	var receipt ipc.Receipt
	if err := b.call("a", ipc.OpKill, ipc.Kill{Token: c.token}, &receipt); err != nil {
		t.Fatal(err)
	}
	if receipt.Killed != 1 || receipt.Left != 0 || len(receipt.Handles) != 1 || receipt.Handles[0] != "started_since" {
		t.Errorf("%+v", receipt)
	}
	if b.count(other.token) != 1 || b.total() != 1 {
		t.Error("another command was hit")
	}
}

func (b *sandbox) total() int {
	var list ipc.Processes
	if err := b.call("a", ipc.OpProcesses, struct{}{}, &list); err != nil {
		b.t.Fatal(err)
	}
	return len(list.Processes)
}

func TestInTheSandboxIsNotReset(t *testing.T) {
	b, facts := exclusiveSandbox(t, "nobody")
	if facts.UID != 65534 || facts.Home != "/nonexistent" {
		t.Errorf("%+v", facts)
	}
	b.sh("a", "id -u; touch $TMPDIR/y z; setsid -f sleep 1000 > /dev/null 2>&1; (setsid env -i sleep 1000 >/dev/null "+
		"2>&1 &)")
	if r, err := b.Reset(context.Background(), "a"); err == nil || kind(err) != "bad_request " {
		t.Errorf("%+v %v", r, err)
	}
	if receipt, err := b.Destroy(context.Background(), "a"); err != nil || receipt.Killed != 2 || receipt.Left != 0 {
		t.Errorf("%+v %v", receipt, err)
	}
}

func TestInTheSandboxWorkspaceIsWhereItIsAskedFor(t *testing.T) {
	testsandbox.Skip(t)
	for _, want := range []string{"/workspace", "/workspace2"} {
		b := newSandbox(t, probed())
		facts := b.create(CreateParams{Slot: "a", Level: isolation.Exclusive, Network: true, User: "nobody",
			Workspace: "/workspace"})
		if string(facts.Workspace) != want || facts.Tmp != "/tmp" {
			t.Errorf("%+v", facts)
		}
		if out := b.sh("a", "pwd; touch mine && stat -c %u . mine"); out != want+"\n65534\n65534" {
			t.Errorf("%q", out)
		}
		defer os.RemoveAll(want)
		if _, err := b.Destroy(context.Background(), "a"); err != nil {
			t.Error(err)
		}
	}
}

func TestInTheSandboxKillEverybody(t *testing.T) {
	b, _ := exclusiveSandbox(t, "")
	if _, err := b.spawn("a", nil, "setsid", "sleep", "1000"); err != nil {
		t.Fatal(err)
	}
	before, err := b.Agent(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	// The shell is spared by its own signal, and so must be ended by the reset.
	if _, err := b.spawn("a", nil, "/bin/sh", "-c", "kill -9 -1; exec setsid sleep 1000"); err != nil &&
		kind(err) != "slot_died " {
		t.Fatal(err)
	}
	t.Log(<-b.deaths)
	if _, err := before.Call(context.Background(), ipc.OpProcesses, struct{}{}, nil); err == nil ||
		kind(err) != "slot_died " {
		t.Errorf("a call to the agent that was killed: %v", err)
	}
	if _, err := b.Agent(context.Background(), "a"); err == nil || kind(err) != "slot_died " {
		t.Errorf("a call after that: %v", err)
	}
}

func TestInTheSandboxWhoeverGoesOnKillingHasADeadSlot(t *testing.T) {
	b, _ := exclusiveSandbox(t, "")
	if _, err := b.spawn("a", nil, "/bin/sh", "-c", "while :; do kill -9 -1; done"); err != nil &&
		kind(err) != "slot_died " {
		t.Fatal(err)
	}
	t.Log(<-b.deaths)
	if _, err := b.Agent(context.Background(), "a"); err == nil || kind(err) != "slot_died " {
		t.Error(err)
	}
	// Nobody else is there to end it: this test is the init of the sandbox.
	if err := syscall.Kill(-1, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
