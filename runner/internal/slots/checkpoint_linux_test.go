package slots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hermes-exec/runner/internal/directories"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/link"
	"hermes-exec/runner/internal/testsandbox"
)

func (b *sandbox) layered(slot string) *SlotLayers {
	b.t.Helper()
	l, err := b.Layers(slot, directories.HoldsRoot)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// tryCopy copies with the running agent of a slot.
func (b *sandbox) tryCopy(slot string, bound layers.Bound) (layers.Stack, error) {
	b.t.Helper()
	return b.layered(slot).Copy(context.Background(), b.agentOf(slot), bound, 0)
}

func (b *sandbox) tryFreeze(slot string) (Frozen, error) {
	b.t.Helper()
	return freezeAgent(context.Background(), b.layered(slot), b.agentOf(slot), func(*link.Agent) {})
}

func freezeAgent(ctx context.Context, l *SlotLayers, agent *link.Agent, swap func(*link.Agent)) (Frozen, error) {
	f, err := l.PrepareFreeze(ctx, agent, 0)
	if err != nil {
		return Frozen{}, err
	}
	return f.Run(ctx, "/workspace", swap)
}

func (b *sandbox) agentOf(slot string) *link.Agent {
	b.t.Helper()
	agent, err := b.Agent(context.Background(), slot)
	if err != nil {
		b.t.Fatal(err)
	}
	return agent
}

func (b *sandbox) freeze(slot string) Frozen {
	b.t.Helper()
	f, err := b.tryFreeze(slot)
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

func (b *sandbox) copy(slot string) layers.Stack {
	b.t.Helper()
	stack, err := b.tryCopy(slot, layers.Bound{})
	if err != nil {
		b.t.Fatal(err)
	}
	return stack
}

func (b *sandbox) restore(slot string, stack layers.Stack) {
	b.t.Helper()
	r, err := b.layered(slot).Restore(context.Background(), stack.Use(), func(*link.Agent) {})
	if err != nil || !r.Clean {
		b.t.Fatalf("%+v %v", r, err)
	}
}

// writeEverywhere changes files of the image, of the skeleton and of each directory.
const writeEverywhere = `set -e
mkdir -p /workspace/deep/er; echo one > /workspace/deep/er/file; ln -s er /workspace/deep/link
echo own > /checkpoint-test; echo '# more' >> /etc/profile; rm -rf /usr/share/doc; mkdir /usr/share/doc
mkfifo /root/fifo; chmod 4755 /workspace/deep/er/file; chown 12:34 /root; chmod 750 /root; touch -d @1234567890 /opt
rm /etc/issue || true
/usr/bin/python3 - <<'END'
import os, struct
for path in "/srv", "/workspace/deep", "/root":
    os.setxattr(path, "user.mine", b"yes")
    os.setxattr(path, "user.overlay.opaque", b"y")
entries = (1, 7, -1), (2, 7, 5), (4, 5, -1), (16, 7, -1), (32, 5, -1)
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
for path in "/srv", "/workspace/deep":
    os.setxattr(path, "system.posix_acl_default", acl)
os.utime("/srv", ns=(1, 987654321987654321))
os.link("/workspace/deep/er/file", "/workspace/deep/hard")
with open("/workspace/deep/hole", "wb") as hole:
    hole.truncate(1 << 30)
END
`

// describeRoot prints what a tenant sees of what writeEverywhere has changed.
const describeRoot = `cd /; (for d in . workspace root opt srv usr/share etc; do
find $d -maxdepth 1 ! -path './*' -printf '%p %y %m %U:%G %T@ %l\n'; done 2>/dev/null | grep -E 'workspace|srv|opt|root|doc|profile|mine|^. |etc |issue|check'
find workspace usr/share/doc -printf '%p %y %m %U:%G %T@ %l\n'| head -300) | sort; cat /etc/profile /checkpoint-test /workspace/deep/er/file
stat -c '%n %h %b' /workspace/deep/hard /workspace/deep/hole
/usr/bin/python3 -c 'import os
for path in "/", "/srv", "/root", "/opt", "/workspace/deep":
    print(path, sorted((name, os.getxattr(path, name)) for name in os.listxattr(path)))
print(os.path.samefile("/workspace/deep/hard", "/workspace/deep/er/file"))'`

func TestInTheSandboxCheckpointHoldsTheRoot(t *testing.T) {
	for name, take := range map[string]func(b *sandbox) layers.Stack{
		"frozen": func(b *sandbox) layers.Stack {
			f := b.freeze("a")
			if f.Copied || f.Killed.Left > 0 {
				t.Errorf("%+v", f)
			}
			return f.Stack
		},
		"copied": func(b *sandbox) layers.Stack { return b.copy("a") },
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := ownRoot(t, "")
			b.create(rootParams("b", ""))
			b.create(rootParams("c", ""))
			pristine := b.sh("b", "("+describeRoot+") 2>/dev/null | sed 's/ 0:0 [0-9.]*//' | head -c 30000; true")
			b.sh("a", writeEverywhere)
			want := b.sh("a", describeRoot)
			for _, name := range []string{"user.mine", "user.overlay.opaque", "posix_acl_default", "987654321.9"} {
				if !strings.Contains(want, name) {
					t.Fatalf("%s is missing: %s", name, want)
				}
			}
			stack := take(b)
			if len(stack) != 1 {
				t.Fatal(stack.IDs())
			}
			same := func(slot string) {
				t.Helper()
				if got := b.sh(slot, describeRoot); got != want {
					t.Errorf("slot %s differs:\n%s", slot, difference(want, got))
				}
			}
			same("a")
			b.restore("b", stack)
			b.restore("c", stack)
			same("b")
			b.sh("b", "rm -rf /workspace/deep /checkpoint-test; echo other > /etc/profile; echo x > /usr/share/doc/x")
			same("c")
			b.sh("a", "rm -rf /workspace/deep /checkpoint-test; echo a > /root/more")
			same("c")
			b.restore("a", stack)
			same("a")
			if err := stack.Release(); err != nil {
				t.Fatal(err)
			}
			same("c")
			for _, slot := range []string{"a", "b", "c"} {
				if r, err := b.Reset(context.Background(), slot); err != nil || !r.Clean {
					t.Fatalf("%+v %v", r, err)
				}
			}
			if left, err := os.ReadDir(b.layers.Dir); err != nil || len(left) > 0 {
				t.Errorf("layers that nobody uses are left: %v %v", left, err)
			}
			if got := b.sh("b", "("+describeRoot+") 2>/dev/null | sed 's/ 0:0 [0-9.]*//' | head -c 30000; true"); got != pristine {
				t.Errorf("a reset slot differs from a new one:\n%s", difference(pristine, got))
			}
		})
	}
}

// difference returns the lines that only one of two texts has.
func difference(a, b string) string {
	var out strings.Builder
	for _, pair := range [][3]string{{"-", a, b}, {"+", b, a}} {
		other := map[string]bool{}
		for line := range strings.Lines(pair[2]) {
			other[strings.TrimSpace(line)] = true
		}
		for line := range strings.Lines(pair[1]) {
			if !other[strings.TrimSpace(line)] {
				out.WriteString(pair[0] + strings.TrimSpace(line) + "\n")
			}
		}
	}
	return out.String()
}

// Somebody outside of the slot has a file of it open for writing.
func TestInTheSandboxFreezeWithALateWriterIsACopy(t *testing.T) {
	b, _ := ownRoot(t, "")
	b.create(rootParams("b", ""))
	b.sh("a", "echo before > /workspace/file; echo before > /root/other")
	c, err := b.spawn("a", nil, "/bin/sh", "-c", "echo ready; exec sleep 1000 > /workspace/file")
	if err != nil {
		t.Fatal(err)
	}
	defer c.out.Close()
	_, _ = c.out.Read(make([]byte, 10))
	var late *os.File
	for late == nil {
		matches, _ := filepath.Glob("/proc/[0-9]*/fd/1")
		for _, at := range matches {
			if to, _ := os.Readlink(at); to == "/workspace/file" {
				if late, err = os.OpenFile(at, os.O_WRONLY, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	defer late.Close()
	f := b.freeze("a")
	if !f.Copied || f.Killed.Found == 0 {
		t.Errorf("%+v", f)
	}
	if _, err := late.WriteString("late"); err != nil {
		t.Fatal(err)
	}
	b.restore("b", f.Stack)
	for _, slot := range []string{"a", "b"} {
		if out := b.sh(slot, "cat /workspace/file /root/other"); out != "before" {
			t.Errorf("%s: %q", slot, out)
		}
	}
	late.Close()
	if f := b.freeze("a"); f.Copied {
		t.Error("without a late writer it is a copy too")
	}
}

func TestInTheSandboxManyLayersOverEachOther(t *testing.T) {
	b, _ := ownRoot(t, "")
	b.create(rootParams("b", ""))
	var stacks []layers.Stack
	for n := range 20 {
		b.sh("a", fmt.Sprintf("echo %d > /workspace/last; echo %d > /workspace/n%d; rm -f /workspace/n%d", n, n, n, n-3))
		stacks = append(stacks, b.freeze("a").Stack)
	}
	for _, n := range []int{19, 3, 0, 11} {
		b.restore("b", stacks[n])
		want := fmt.Sprint(n)
		for i := max(0, n-2); i <= n; i++ {
			want += fmt.Sprintf(" n%d", i)
		}
		if out := b.sh("b", "cd /workspace; echo $(cat last) $(ls -v | grep n)"); out != want {
			t.Errorf("%d: %q instead of %q", n, out, want)
		}
	}
	for _, stack := range stacks {
		if err := stack.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if out := b.sh("a", "cat /workspace/last"); out != "19" {
		t.Error(out)
	}
}

func TestInTheSandboxCopyBeyondItsBoundLeavesNothing(t *testing.T) {
	b, _ := ownRoot(t, "")
	b.sh("a", "cd /workspace; for i in $(seq 30); do echo > $i; done")
	if _, err := b.tryCopy("a", layers.Bound{Entries: 20}); !errors.Is(err, layers.ErrTooLarge) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(b.layers.Dir); len(left) > 0 {
		t.Error(left)
	}
}

// Paths that a tenant of the user root plants do not lead a later agent elsewhere.
func TestInTheSandboxRestoreFollowsNoLinkOfATenant(t *testing.T) {
	b, _ := ownRoot(t, "")
	outside := t.TempDir()
	b.sh("a", "cd /; rm -rf /workspace /tmp/*; ln -s "+outside+" /workspace; echo kept > /tmp/kept")
	f := b.freeze("a")
	for range 2 {
		if _, err := b.spawn("a", nil, "/bin/true"); err == nil {
			t.Error("a command has started in a directory that does not exist in the slot")
		}
		if out, err := os.ReadFile("/tmp/kept"); err == nil {
			t.Errorf("%q of the slot is in the sandbox", out)
		}
		b.restore("a", f.Stack)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
}

func TestInTheSandboxCopiesDoNotShareTheirStack(t *testing.T) {
	b, _ := ownRoot(t, "")
	for n := range 3 {
		b.sh("a", fmt.Sprintf("echo %d > /workspace/n%d", n, n))
		b.freeze("a")
	}
	b.sh("a", "echo first > /workspace/file")
	first := b.copy("a")
	before := fmt.Sprint(first.IDs())
	b.sh("a", "echo second > /workspace/file")
	second := b.copy("a")
	if after := fmt.Sprint(first.IDs()); after != before || fmt.Sprint(second.IDs()) == before {
		t.Error(before, after, second.IDs())
	}
	b.restore("a", first)
	if out := b.sh("a", "cat /workspace/file"); out != "first" {
		t.Error(out)
	}
}

// fullSandbox is ownRoot with little room for the files of slots.
func fullSandbox(t *testing.T, options string) *sandbox {
	t.Helper()
	testsandbox.Skip(t)
	base := passableDir(t)
	if err := syscall.Mount("tmpfs", base, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	m, err := NewManager(filepath.Join(base, "runner"), probed(), os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	b := sandboxOf(t, m)
	if _, err := b.ownRootImage(false); err != nil {
		t.Skip(err)
	}
	b.create(rootParams("a", ""))
	return b
}

func TestInTheSandboxCheckpointsOnAFullDisk(t *testing.T) {
	for name, full := range map[string]struct{ options, fill string }{
		"bytes":  {"size=24m,mode=711", "head -c 9000000 /dev/zero > file; head -c 100m /dev/zero > rest 2>/dev/null; ls -s"},
		"inodes": {"nr_inodes=2000,mode=711", "i=0; while mkdir d$i 2>/dev/null; do i=$((i+1)); done; ls | wc -l"},
	} {
		t.Run(name, func(t *testing.T) {
			b := fullSandbox(t, full.options)
			b.sh("a", "echo old > /workspace/old")
			before := b.freeze("a").Stack
			want := b.sh("a", "cd /workspace; "+full.fill)
			_, err := b.tryCopy("a", layers.Bound{})
			if err == nil || !errors.Is(err, syscall.ENOSPC) && kind(err) != "os ENOSPC" {
				t.Errorf("a copy on a full disk: %v", err)
			}
			if left, _ := os.ReadDir(b.layers.Dir); len(left) != 1 {
				t.Error("a part of a copy is left:", left)
			}
			if out := b.sh("a", "cat /workspace/old"); out != "old" {
				t.Error(out)
			}
			f, err := b.tryFreeze("a")
			t.Log(want, err)
			if err != nil && !errors.Is(err, syscall.ENOSPC) && kind(err) != "exhausted " && kind(err) != "os ENOSPC" {
				t.Errorf("a freeze on a full disk: %s %v", kind(err), err)
			}
			b.restore("a", before)
			if err := f.Stack.Release(); err != nil {
				t.Fatal(err)
			}
			b.sh("a", "until echo new > /workspace/new; do :; done 2>/dev/null; cat /workspace/old")
		})
	}
}

func TestInTheSandboxStackHasALimit(t *testing.T) {
	b, _ := ownRoot(t, "")
	var stack layers.Stack
	for n := range layers.MaxStack {
		layer, err := b.layers.Add()
		if err != nil {
			t.Fatal(err)
		}
		dir := layer.Path(0)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(fmt.Sprint(dir, "/n", n), nil, 0o600),
			os.WriteFile(dir+"/last", []byte(fmt.Sprint(n)), 0o600)); err != nil {
			t.Fatal(err)
		}
		layer.AddPart(0)
		layer.Complete()
		stack = stack.With(layer)
	}
	b.restore("a", stack)
	if out := b.sh("a", "ls / | grep -c ^n; cat /last"); out != "200\n199" {
		t.Errorf("%q", out)
	}
	b.sh("a", "echo > /workspace/more; sleep 1000 >/dev/null 2>&1 &")
	_, err := b.tryCopy("a", layers.Bound{})
	if kind(err) != "no_layers " {
		t.Error(err)
	}
	if out := b.sh("a", "ls /workspace; pgrep -c sleep"); out != "more\n1" {
		t.Errorf("%q", out)
	}
	f := b.freeze("a")
	if len(f.Stack) >= layers.MaxStack {
		t.Errorf("%d layers were not merged", len(f.Stack))
	}
	b.create(rootParams("b", ""))
	b.restore("b", f.Stack)
	for _, slot := range []string{"a", "b"} {
		if out := b.sh(slot, "ls /workspace; ls / | grep -c ^n; cat /last"); out != "more\n200\n199" {
			t.Errorf("%q", out)
		}
	}
	b.copy("a")
}

// A freeze does not make the files of a slot those of others.
func TestInTheSandboxLayersCountAsTheSlotsUseOfTheDisk(t *testing.T) {
	b := fullSandbox(t, "size=100m,mode=711")
	b.create(rootParams("b", ""))
	b.sh("a", "head -c 400m /dev/zero > /workspace/big 2>/dev/null; true")
	b.freeze("a")
	for slot, others := range map[string]bool{"a": false, "b": true} {
		f, err := b.Disk(context.Background(), slot, false, false)
		if err != nil || !f.NearlyFull || f.ByOthers != others {
			t.Errorf("%s: %+v %v", slot, f, err)
		}
	}
}

// A checkpoint that waits for a reset of its slot does not touch the next holder's slot.
func TestInTheSandboxCheckpointNeverTouchesAResetSlot(t *testing.T) {
	ctx := context.Background()
	for name, try := range map[string]func(*SlotLayers, *link.Agent) error{
		"copy": func(l *SlotLayers, agent *link.Agent) error {
			_, err := l.Copy(ctx, agent, layers.Bound{}, 0)
			return err
		},
		"freeze": func(l *SlotLayers, agent *link.Agent) error {
			_, err := freezeAgent(ctx, l, agent, func(*link.Agent) { t.Error("the next holder's agent") })
			return err
		},
	} {
		for _, begun := range []bool{true, false} {
			t.Run(fmt.Sprint(name, begun), func(t *testing.T) {
				b, _ := ownRoot(t, "")
				b.sh("a", "echo first > /workspace/first")
				layered, agent := b.layered("a"), b.agentOf("a")
				if r, err := b.Reset(ctx, "a"); err != nil || !r.Clean {
					t.Fatalf("%+v %v", r, err)
				}
				if begun {
					b.sh("a", "echo next > /workspace/next; sleep 1000 >/dev/null 2>&1 &")
				}
				if err := try(layered, agent); err == nil || kind(err) != "slot_closed " {
					t.Error(err)
				}
				want := map[bool]string{true: "next\n1", false: "0"}[begun]
				if out := b.sh("a", "ls /workspace; pgrep -c sleep || true"); out != want {
					t.Errorf("%q", out)
				}
				if left, _ := os.ReadDir(b.layers.Dir); len(left) > 0 {
					t.Error(left)
				}
			})
		}
	}
}

func TestInTheSandboxCanceledCheckpointChangesNothing(t *testing.T) {
	b, _ := ownRoot(t, "")
	b.sh("a", "echo > /workspace/file; sleep 1000 >/dev/null 2>&1 &")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.layered("a").Copy(ctx, b.agentOf("a"), layers.Bound{}, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	_, err := freezeAgent(ctx, b.layered("a"), b.agentOf("a"), func(*link.Agent) { t.Error("a new agent") })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if out := b.sh("a", "ls /workspace; pgrep -c sleep || true"); out != "file\n1" {
		t.Errorf("%q", out)
	}
}

// An agent that is not started after a freeze is started later, and only with proof.
func TestInTheSandboxFreezeWithoutANewAgent(t *testing.T) {
	b, _ := ownRoot(t, "")
	b.sh("a", "echo before > /workspace/file")
	b.agentOf("a")
	b.setupTimeout = 1
	f, err := b.tryFreeze("a")
	b.setupTimeout = setupTimeout
	if err == nil || kind(err) != "exhausted " || len(f.Stack) > 0 {
		t.Fatalf("%+v %v", f, err)
	}
	s := b.slots["a"]
	if frozen := s.setup.View.Frozen; len(frozen) != 1 {
		t.Error("the next agent starts without proof:", frozen)
	}
	if out := b.sh("a", "cat /workspace/file"); out != "before" || len(s.setup.View.Frozen) > 0 {
		t.Errorf("%q %q", out, s.setup.View.Frozen)
	}
	if f := b.freeze("a"); f.Copied || len(f.Stack) != 1 {
		t.Errorf("%+v", f)
	}
}

func TestInTheSandboxFailedFreezeLeavesNoDirectory(t *testing.T) {
	b, _ := ownRoot(t, "")
	b.sh("a", "echo before > /workspace/file")
	s := b.slots["a"]
	view := s.setup.View.Layer
	s.setup.View.Layer += "-missing"
	_, err := b.tryFreeze("a")
	s.setup.View.Layer = view
	if err == nil || kind(err) != "unclean " {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "next")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(b.layers.Dir); len(left) > 0 {
		t.Error(left)
	}
}
