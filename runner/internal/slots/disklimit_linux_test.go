package slots

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/limits"
	"hermes-exec/runner/internal/testsandbox"
)

func diskParams(slot string, sizeMB int64) CreateParams {
	return CreateParams{Slot: slot, Network: true, PrivateRoot: true, Limits: ipc.Limits{DiskMB: &sizeMB}}
}

// loopFiles returns how many loop devices have a file below dir.
func loopFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if at, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(at), dir+"/") {
			n++
		}
	}
	return n
}

const fillDirectories = "for d in . ~ /tmp /var/tmp; do head -c 20000000 /dev/zero > $d/large; done 2>&1 | " +
	"grep -c 'No space left'; du -cm ./large ~/large /tmp/large /var/tmp/large | awk 'END {print ($1 > 5 && $1 <= 8)}'"

// testDiskLimit fills the disk of slot "a", of 8 MiB, and leaves the neighbour "b" its own.
func testDiskLimit(t *testing.T, b *sandbox, script string) {
	t.Helper()
	if out := b.sh("a", script); out != "4\n1" {
		t.Errorf("%q", out)
	}
	if out := b.sh("b", "head -c 4000000 /dev/zero > large && stat -c %s large"); out != "4000000" {
		t.Errorf("the neighbour: %q", out)
	}
	if out := b.sh("a", "head -c 300000 /dev/zero 2>/dev/null >more || echo full; rm large; echo on"); out != "full\non" {
		t.Errorf("%q", out)
	}
	for range 3 {
		if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
			t.Fatalf("%+v %v", r, err)
		}
		if out := b.sh("a", "ls -A . /tmp ~ | grep large; head -c 4000000 /dev/zero > large && echo empty"); out != "empty" {
			t.Errorf("after a reset: %q", out)
		}
	}
}

func TestDiskLimitBoundsASlotAlone(t *testing.T) {
	needs(t, isolation.Namespaces)
	if probed().Method == isolation.MethodBwrap {
		t.Skip("bubblewrap makes the file systems")
	}
	b := newSandbox(t, probed())
	facts := b.create(diskParams("a", 8))
	b.create(diskParams("b", 8))
	want := "file system of the slot in memory"
	if probed().Method == isolation.MethodDirect {
		want = "file system of the slot in a file"
	}
	if how := facts.Isolation.Limits["disk_mb"]; how != want {
		t.Errorf("%q", how)
	}
	testDiskLimit(t, b, fillDirectories)
	if facts := b.disk("a"); facts.NearlyFull {
		t.Errorf("the disk of the sandbox: %+v", facts)
	}
	if out := b.sh("a", "stat -c '%a %u %g' . ~ /tmp /var/tmp | sort -u; id -u; id -g"); len(strings.Fields(out)) != 5 ||
		strings.Fields(out)[1] != strings.Fields(out)[3] {
		t.Errorf("modes and owners: %q", out)
	}
}

func TestInTheSandboxDiskLimitOfAnOwnRoot(t *testing.T) {
	if !limits.HasMemoryAttributes() {
		t.Skip("this kernel has no layers in memory")
	}
	b, _ := ownRoot(t, "")
	if _, err := b.Destroy(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	size := int64(8)
	for _, slot := range []string{"a", "b"} {
		p := rootParams(slot, "")
		p.Limits.DiskMB = &size
		b.create(p)
	}
	if out := b.sh("a", "rm -rf /usr/share/doc && mkdir /usr/share/doc && ls /usr/share/doc"); out != "" {
		t.Errorf("a directory of the image cannot be replaced: %q", out)
	}
	testDiskLimit(t, b, strings.ReplaceAll(fillDirectories, "~", "/usr"))
}

func TestDiskOfASlotLeavesNothing(t *testing.T) {
	needs(t, isolation.Namespaces)
	if probed().Method != isolation.MethodDirect {
		t.Skip("no disks in files here")
	}
	b := newSandbox(t, probed())
	b.create(diskParams("a", 64))
	b.sh("a", "(exec 3>large; rm large; head -c 30000000 /dev/zero >&3; exec sleep 1000) >/dev/null 2>&1 </dev/null &")
	if n := loopFiles(t, b.base); n != 1 {
		t.Errorf("%d loop devices", n)
	}
	if files, err := os.ReadDir(filepath.Join(b.base, "disks")); err != nil || len(files) != 1 {
		t.Errorf("only the template has a name: %v %v", files, err)
	}
	if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
		t.Fatalf("%+v %v", r, err)
	}
	gone := func() bool { return loopFiles(t, b.base) == 0 }
	b.waitFor(gone)
	b.sh("a", "echo x > file")
	if _, err := b.Destroy(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	b.waitFor(gone)
	if table := testsandbox.MountTable(); strings.Contains(table, b.base) {
		t.Error("a mount is left")
	}
}

func TestSlotThatFillsTheHostThroughItsDiskIsItsCause(t *testing.T) {
	needs(t, isolation.Namespaces)
	if probed().Method != isolation.MethodDirect {
		t.Skip("no disks in files here")
	}
	dir, _ := smallDisk(t)
	b := sandboxAt(t, dir)
	b.create(diskParams("a", 500))
	b.create(diskParams("b", 500))
	b.sh("b", "echo x > file")
	b.sh("a", "head -c 100000000 /dev/zero > large; sync large; true")
	if facts := b.disk("a"); !facts.NearlyFull || facts.ByOthers {
		t.Errorf("the slot filled it: %+v", facts)
	}
	if facts := b.disk("b"); !facts.NearlyFull || !facts.ByOthers {
		t.Errorf("its neighbour filled it: %+v", facts)
	}
	if result, err := b.Reset(context.Background(), "a"); err != nil || !result.Clean {
		t.Errorf("%+v %v", result, err)
	}
	for end := time.Now().Add(time.Minute); b.DiskNearlyFull("b") && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if out := b.sh("b", "head -c 1000000 /dev/zero > more && sync more && echo ok"); out != "ok" {
		t.Errorf("after the reset: %q", out)
	}
}

func TestDiskLimitIsNotMovedToMemoryByAFullHost(t *testing.T) {
	needs(t, isolation.Namespaces)
	if probed().Method != isolation.MethodDirect {
		t.Skip("no disks in files here")
	}
	dir, fill := smallDisk(t)
	b := sandboxAt(t, dir)
	fill("others", 64<<20)
	if _, err := b.Create(context.Background(), diskParams("a", 8)); err == nil || kind(err) == "limit " {
		t.Errorf("on a full disk: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "others")); err != nil {
		t.Fatal(err)
	}
	if how := b.create(diskParams("a", 8)).Isolation.Limits["disk_mb"]; !strings.HasSuffix(how, "in a file") {
		t.Errorf("%q", how)
	}
}

func TestDiskLimitIsRefusedWithItsReason(t *testing.T) {
	for level, want := range map[string]string{
		isolation.UID: "level uid share", isolation.Landlock: "level landlock share", isolation.None: "level none share",
		isolation.Exclusive: "exclusive slot"} {
		if !probed().Has(level) {
			continue
		}
		b := newSandbox(t, probed())
		p := diskParams("a", 8)
		p.Level, p.PrivateRoot = level, level != isolation.Exclusive
		if _, err := b.Create(context.Background(), p); err == nil || kind(err) != "limit " ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", level, err)
		}
		p.BestEffortLimits = true
		if level == isolation.Exclusive {
			continue // it would be this machine
		}
		if how := b.create(p).Isolation.Limits["disk_mb"]; how != "not enforced" {
			t.Errorf("%s: %q", level, how)
		}
	}
}
