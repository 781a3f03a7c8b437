package slots

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

func TestRlimitsHoldFromTheFirstInstruction(t *testing.T) {
	for _, level := range levels() {
		t.Run(level, func(t *testing.T) {
			b := newSandbox(t, probed())
			facts := b.create(CreateParams{Slot: "a", Level: level, Network: true, PrivateRoot: true,
				Limits: ipc.Limits{OpenFiles: ptr[int64](77), FileSizeMB: ptr[int64](1), CPUTimeS: ptr(1.0)}})
			if got := b.sh("a", "ulimit -n; ulimit -Hn; ulimit -Ht"); got != "77\n77\n1" {
				t.Errorf("limits %q, %v", got, facts.Isolation.Limits)
			}
			if out, e := b.run("a", "/bin/sh", "-c",
				"head -c 2000000 /dev/zero > big; stat -c %s big"); !strings.Contains(out, "1048576") {
				t.Errorf("file size: %d %s", e.ExitCode, out)
			}
			began := time.Now()
			if _, e := b.run("a", "/bin/sh", "-c", "while :; do :; done"); e.ExitCode <= 128 ||
				time.Since(began) > 60*time.Second {
				t.Errorf("cpu time: %+v after %v", e, time.Since(began))
			}
			for range 50 {
				if got := b.sh("a", "ulimit -n"); got != "77" {
					t.Fatalf("open files %s", got)
				}
			}
			if reason, e := b.run("a", "/no/such/program"); e.ExitCode != 127 {
				t.Errorf("%+v %s", e, reason)
			}
		})
	}
}

func TestMemoryLimitAndOOMFact(t *testing.T) {
	if probed().Cgroup == "none" {
		t.Skip("no cgroup can be made here")
	}
	for _, level := range levels() {
		t.Run(level, func(t *testing.T) {
			b := newSandbox(t, probed())
			facts := b.create(CreateParams{Slot: "a", Level: level, Network: true, PrivateRoot: true,
				Limits: ipc.Limits{MemoryMB: ptr[int64](48), CPUs: ptr(0.5)}})
			if how := facts.Isolation.Limits; !strings.HasPrefix(how["memory_mb"], "cgroup") ||
				!strings.HasPrefix(how["cpus"], "cgroup") {
				t.Fatalf("%v", how)
			}
			if _, e := b.run("a", "/bin/sh", "-c",
				"x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo $x | wc -c"); !e.OOMKilled || e.ExitCode != 137 {
				t.Errorf("%+v", e)
			}
			if _, e := b.run("a", "/bin/sh", "-c", "kill -9 $$"); e.OOMKilled {
				t.Errorf("no memory was short: %+v", e)
			}
			if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
				t.Errorf("%+v %v", r, err)
			}
		})
	}
}

func TestMemoryWatchdog(t *testing.T) {
	for _, level := range levels() {
		t.Run(level, func(t *testing.T) {
			f := probed()
			f.Cgroups = nil
			b := newSandbox(t, f)
			p := CreateParams{Slot: "a", Level: level, Network: true, PrivateRoot: true,
				Limits: ipc.Limits{MemoryMB: ptr[int64](48)}}
			if _, err := b.Create(context.Background(), p); err == nil || kind(err) != "limit " {
				t.Errorf("without best effort: %v", err)
			}
			p.BestEffortLimits = true
			facts := b.create(p)
			if how := facts.Isolation.Limits["memory_mb"]; !strings.Contains(how, "watchdog") {
				t.Errorf("%q", how)
			}
			if _, e := b.run("a", "/bin/sh", "-c",
				"x=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 50; echo $x | wc -c"); !e.OOMKilled ||
				e.ExitCode != 137 {
				t.Errorf("%+v", e)
			}
			b.sh("a", "true")
		})
	}
}

const bomb = `$SIG{TERM} = "IGNORE"; while (1) { fork(); setpgrp(0, 0) }`

// TestForkBombEnds runs where a limit of processes holds and nothing outside
// the slot can be reached.
func TestForkBombEnds(t *testing.T) {
	needs(t, isolation.Namespaces)
	if _, err := os.Stat("/usr/bin/perl"); err != nil {
		t.Skip(err)
	}
	b := newSandbox(t, probed())
	facts, err := b.Create(context.Background(),
		CreateParams{Slot: "a", Level: isolation.Namespaces, PrivateRoot: true,
			Limits: ipc.Limits{PIDs: ptr[int64](120)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(facts.Isolation.Limits)
	other, err := b.spawn("a", nil, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.spawn("a", nil, "perl", "-e", bomb)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.waitFor(func() bool { return b.count(c.token) > 60 })
	t.Logf("grown after %v", time.Since(began))
	var receipt ipc.Receipt
	if err := b.call("a", ipc.OpKill, ipc.Kill{Token: c.token, GraceS: 0.2}, &receipt); err != nil {
		t.Fatal(err)
	}
	t.Logf("kill: %+v", receipt)
	if receipt.Left != 0 || receipt.Found < 60 {
		t.Errorf("%+v", receipt)
	}
	if n := b.count(other.token); n != 1 {
		t.Errorf("another command of the slot was hit: %d", n)
	}
	b.sh("a", "true")
	if _, err = b.spawn("a", nil, "perl", "-e", bomb); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	r, err := b.Reset(context.Background(), "a")
	if err != nil || !r.Clean || time.Since(began) > 30*time.Second {
		t.Errorf("%+v %v", r, err)
	}
	t.Logf("reset: %v %+v", time.Since(began), r)
	b.sh("a", "true")
}

// TestKillEverythingFromInside: only inside a pid namespace of its own.
func TestKillEverythingFromInside(t *testing.T) {
	needs(t, isolation.Namespaces)
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.Namespaces, PrivateRoot: true, Network: true})
	if got := b.sh("a", "echo $(ls -d /proc/[0-9]* | wc -l)"); got > "9" && len(got) > 1 {
		t.Skipf("%s processes to be seen: not a pid namespace of its own", got)
	}
	for range 3 {
		b.run("a", "/bin/sh", "-c", "for s in 1 2 3 6 8 10 11 12 13 14 15 24 25 31 9; do kill -$s -1; kill -$s 1; "+
			"done; exit 0")
		b.sh("a", "true")
	}
	select {
	case why := <-b.deaths:
		t.Error(why)
	default:
	}
}
