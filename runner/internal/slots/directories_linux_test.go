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
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/layers"
	"hermes-exec/runner/internal/link"
)

func (b *sandbox) directories(slot string) *SlotLayers {
	b.t.Helper()
	l, err := b.Layers(slot, directories.HoldsDirectories)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *sandbox) tryCopyDirectories(slot string) (layers.Stack, error) {
	b.t.Helper()
	return b.directories(slot).Copy(context.Background(), b.agentOf(slot), layers.Bound{}, 0)
}

func (b *sandbox) copyDirectories(slot string) layers.Stack {
	b.t.Helper()
	stack, err := b.tryCopyDirectories(slot)
	if err != nil {
		b.t.Fatal(err)
	}
	return stack
}

func (b *sandbox) setDirectories(slot string, stack layers.Stack) {
	b.t.Helper()
	r, err := b.tryDirectories(slot, stack)
	if err != nil || !r.Clean {
		b.t.Fatalf("%+v %v", r, err)
	}
}

func (b *sandbox) tryDirectories(slot string, stack layers.Stack) (ResetResult, error) {
	b.t.Helper()
	return b.directories(slot).Restore(context.Background(), stack.Use(), func(*link.Agent) {})
}

// writeDirectories makes entries of each kind, some of which their owner cannot read.
const writeDirectories = `set -e; umask 022
mkdir -p deep/er .hidden $HOME/.config; echo one > deep/er/file; ln deep/er/file deep/hard; ln -s er deep/link
ln -s /etc/passwd absolute; mkfifo fifo; truncate -s 1000000 hole; printf x | dd of=hole bs=1 seek=500000 conv=notrunc 2>/dev/null
echo shut > shut; mkdir closed; echo x > closed/inside; echo run > tool; chmod 6755 tool
echo home > $HOME/.config/file; echo tmp > $TMPDIR/file; chmod 1777 $TMPDIR; chmod 750 .
touch -d @1234567890 deep/er deep $HOME; touch -h -d @987654321 absolute; chmod 0 shut closed; touch -d @1111111111 .
`

// describeDirectories prints what a tenant sees of its directories.
const describeDirectories = `for d in . $HOME $TMPDIR; do cd $d; echo $d | sed 's,.*/slots/[a-z]*,,';
find . -printf '%p %y %m %U:%G %n %s %b %T@ %l\n' 2>/dev/null | sort
find . -type f -readable | sort | xargs -r sha256sum; done`

func described(b *sandbox, slot string) string {
	b.t.Helper()
	facts := b.facts(slot)
	user := fmt.Sprintf(" %d:%d ", facts.UID, facts.GID)
	text := b.sh(slot, describeDirectories)
	if facts.UID != os.Geteuid() && strings.Contains(text, fmt.Sprintf(" %d:", os.Geteuid())) {
		b.t.Errorf("an entry of slot %s belongs to the runner:\n%s", slot, text)
	}
	return strings.ReplaceAll(text, user, " own ")
}

func TestCheckpointHoldsDirectories(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, facts SlotFacts) {
		for _, slot := range []string{"b", "c"} {
			b.create(CreateParams{Slot: slot, Level: facts.Isolation.Level, Network: true, PrivateRoot: true})
		}
		b.sh("a", writeDirectories)
		want := described(b, "a")
		stack := b.copyDirectories("a")
		if len(stack) != 1 || len(stack[0].LeftOut) > 0 {
			t.Fatalf("%v %v", stack.IDs(), stack[0].LeftOut)
		}
		same := func(slot string) {
			t.Helper()
			if got := described(b, slot); got != want {
				t.Errorf("slot %s differs:\n%s", slot, difference(want, got))
			}
		}
		same("a")
		b.setDirectories("b", stack)
		b.setDirectories("c", stack)
		same("b")
		same("c")
		b.sh("b", "chmod 700 closed shut; echo changed > deep/er/file; rm -r closed; echo new > $HOME/new; rm $TMPDIR/file")
		same("a")
		same("c")
		b.sh("a", "chmod -R u+rwx . && rm -rf ./* $HOME/.config")
		b.setDirectories("a", stack)
		same("a")
		second := b.copyDirectories("b") // of a fork
		b.setDirectories("c", second)
		if out := b.sh("c", "cat deep/er/file $HOME/new; ls $TMPDIR"); out != "changed\nnew" {
			t.Errorf("%q", out)
		}
		if size, err := stack[0].Size(); err != nil || size.Entries < 15 || size.Bytes < 20 || size.Bytes > 1<<20 {
			t.Errorf("%+v %v", size, err)
		}
		dir := stack[0].Dir()
		if err := errors.Join(stack.Release(), second.Release()); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("a dropped layer is there: %v", err)
		}
		same("a")
		for _, slot := range []string{"a", "b", "c"} {
			if r, err := b.Reset(context.Background(), slot); err != nil || !r.Clean {
				t.Errorf("%+v %v", r, err)
			}
			if out := b.sh(slot, "ls -A . $HOME $TMPDIR | grep -v : | tr -d '\\n'"); out != "" {
				t.Errorf("%q after the release of slot %s", out, slot)
			}
		}
	})
}

func TestSlotThatCannotHaveACheckpointOfThis(t *testing.T) {
	eachLevel(t, func(t *testing.T, b *sandbox, _ SlotFacts) {
		if _, err := b.Layers("a", directories.HoldsRoot); err == nil || !strings.Contains(err.Error(), "a root of its own") {
			t.Error(err)
		}
	})
	needs(t, isolation.Namespaces)
	b := newSandbox(t, probed())
	size := int64(20)
	b.create(CreateParams{Slot: "a", Level: isolation.Namespaces, Network: true, PrivateRoot: true,
		Limits: ipc.Limits{DiskMB: &size}})
	if _, err := b.Layers("a", directories.HoldsDirectories); err == nil || !strings.Contains(err.Error(), "limit of its disk") {
		t.Error(err)
	}
}

// A tenant links a file of the host that it cannot read, and leaves a program of root and a device: the
// runner, which is root, gives none of it to a fork.
func TestForkGetsNothingOfOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes entries of other users")
	}
	eachLevel(t, func(t *testing.T, b *sandbox, facts SlotFacts) {
		b.create(CreateParams{Slot: "b", Level: facts.Isolation.Level, Network: true, PrivateRoot: true})
		b.sh("a", "echo own > own; mkdir sub")
		at := func(name string) string { return filepath.Join(b.base, "slots", "a", "workspace", name) }
		secret := filepath.Join(b.base, "secret")
		writeSecret := os.WriteFile(secret, []byte("secret of root"), 0o600)
		shell := os.WriteFile(at("sub/shell"), []byte("x"), 0o755)
		if err := errors.Join(writeSecret, shell, os.Link(secret, at("link")), syscall.Chmod(at("sub/shell"), 0o4755),
			syscall.Mknod(at("disk"), syscall.S_IFBLK|0o666, 7<<8), os.Lchown(at("disk"), facts.UID, facts.GID)); err != nil {
			t.Fatal(err)
		}
		stack := b.copyDirectories("a")
		defer func() { _ = errors.Join(stack.Release(), os.Remove(secret)) }()
		workspace := string(facts.Workspace)
		left := strings.Join(stack[0].LeftOut, "\n")
		for _, name := range []string{"/link: it belongs to another user", "/sub/shell: it belongs to another user",
			"/disk: it is a device"} {
			if !strings.Contains(left, workspace+name) {
				t.Errorf("%q is missing in %s", name, left)
			}
		}
		b.setDirectories("b", stack)
		if out := b.sh("b", "find . $HOME $TMPDIR ! -user $(id -u) -o -type b; find . -type f; stat -c %h own"); out != "./own\n1" {
			t.Errorf("%q", out)
		}
	})
}

// A tenant moves the parents of a mount point away and leaves a link in their place.
func TestLinkInTheWayOfAReadOnlyPath(t *testing.T) {
	needs(t, isolation.Namespaces)
	outside := t.TempDir() // below /tmp
	if !strings.HasPrefix(outside, "/tmp/") {
		t.Skip("temporary files are elsewhere")
	}
	for _, dir := range []string{"/data/given", "/victim"} {
		if err := os.MkdirAll(outside+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := newSandbox(t, probed())
	for _, slot := range []string{"a", "b"} {
		b.create(CreateParams{Slot: slot, Level: isolation.Namespaces, Network: true, PrivateRoot: true,
			ReadOnlyPaths: []ipc.Bytes{ipc.Bytes(outside + "/data/given")}})
	}
	b.sh("a", "test -d "+outside+"/data/given; echo kept > kept")
	plain := b.copyDirectories("a")
	b.setDirectories("b", plain)
	if out := b.sh("b", "cat kept; ls -d "+outside+"/data/given"); out != "kept\n"+outside+"/data/given" {
		t.Errorf("%q", out)
	}
	first := strings.Split(outside, "/")[2]
	b.sh("a", "mv /tmp/"+first+" /tmp/away && ln -s "+outside+"/victim /tmp/"+first)
	_, err := b.tryCopyDirectories("a")
	if err == nil || kind(err) != "no_layers " || !strings.Contains(err.Error(), "/tmp/"+first+" is in the way") {
		t.Error(err)
	}
	// The store of another sandbox may hold such a link too.
	forged := filepath.Join(plain[0].Path(2), first)
	if err := errors.Join(os.RemoveAll(forged), os.Symlink(outside+"/victim", forged)); err != nil {
		t.Fatal(err)
	}
	b.sh("b", "echo mine > mine")
	_, err = b.tryDirectories("b", plain)
	if err == nil || kind(err) != "no_layers " || !strings.Contains(err.Error(), "is in the way") {
		t.Error(err)
	}
	if out := b.sh("b", "cat mine"); out != "mine" {
		t.Errorf("%q after a restore that was refused", out)
	}
	if entries, err := os.ReadDir(outside + "/victim"); err != nil || len(entries) > 0 {
		t.Errorf("%v %v", entries, err)
	}
	if err := plain.Release(); err != nil {
		t.Error(err)
	}
}

func TestDirectoriesThatWereReplaced(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.None, Network: true, PrivateRoot: true})
	b.sh("a", "true")
	workspace := filepath.Join(b.base, "slots", "a", "workspace")
	if err := errors.Join(os.Rename(workspace, workspace+"2"), os.Symlink("/etc", workspace)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.tryCopyDirectories("a"); err == nil {
		t.Error("a link was followed")
	}
	if left, err := os.ReadDir(b.layers.Dir); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
	if err := errors.Join(os.Remove(workspace), os.Rename(workspace+"2", workspace)); err != nil {
		t.Fatal(err)
	}
}

func TestCopyOfDirectoriesIsCanceled(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.None, Network: true, PrivateRoot: true})
	b.sh("a", "echo x > x")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.directories("a").Copy(ctx, b.agentOf("a"), layers.Bound{}, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if out := b.sh("a", "cat x"); out != "x" {
		t.Errorf("%q", out)
	}
}

func TestDeepDirectoriesOfATenant(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Network: true, PrivateRoot: true})
	walk := "import os\nfor _ in range(3000):\n    %s os.chdir('d')\nopen('file', '%s').%s\n"
	b.sh("a", "/usr/bin/python3 -c \""+fmt.Sprintf(walk, "os.mkdir('d');", "w", "write('deep')")+"\"")
	stack := b.copyDirectories("a")
	b.setDirectories("a", stack)
	b.sh("a", "/usr/bin/python3 -c \""+fmt.Sprintf(walk, "", "r", "read() == 'deep' or exit(1)")+"\"")
	if err := stack.Release(); err != nil {
		t.Error(err)
	}
}

func TestFullDiskAndDirectories(t *testing.T) {
	dir, fill := smallDisk(t)
	b := sandboxAt(t, dir)
	for _, slot := range []string{"a", "b"} {
		b.create(CreateParams{Slot: slot, Level: isolation.None, Network: true, PrivateRoot: true})
	}
	b.sh("a", "head -c 24000000 /dev/zero > $HOME/large")
	stack := b.copyDirectories("a")
	fill("others", 64<<20)
	_, err := b.tryCopyDirectories("a")
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), string(b.facts("a").Home)+"/large") {
		t.Error(err)
	}
	if left, err := os.ReadDir(b.layers.Dir); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	// The files of the last tenant are its room.
	b.setDirectories("a", stack)
	if out := b.sh("a", "stat -c %s $HOME/large"); out != "24000000" {
		t.Errorf("%q", out)
	}
	r, err := b.tryDirectories("b", stack)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%+v %v", r, err)
	}
	if out := b.sh("b", "ls -A . $HOME $TMPDIR | grep -v : | tr -d '\\n'"); out != "" {
		t.Errorf("%q after a restore without room", out)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "others")), stack.Release()); err != nil {
		t.Error(err)
	}
}

func TestDirectoriesCountAgainstTheLimit(t *testing.T) {
	b := newSandbox(t, probed())
	b.create(CreateParams{Slot: "a", Level: isolation.None, Network: true, PrivateRoot: true})
	b.sh("a", "head -c 3000000 /dev/zero > large; ln large same")
	take := func(limit int64) (layers.Stack, error) {
		return b.directories("a").Copy(context.Background(), b.agentOf("a"), layers.Bound{}, limit)
	}
	var stacks layers.Stack
	for range 2 {
		stack, err := take(7_000_000)
		if err != nil {
			t.Fatal(err)
		}
		stacks = append(stacks, stack...)
	}
	_, err := take(7_000_000)
	if full := new(layers.FullError); !errors.As(err, &full) || full.Bytes != 9_000_000 {
		t.Errorf("%+v", err)
	}
	if left, err := os.ReadDir(b.layers.Dir); err != nil || len(left) != 2 {
		t.Errorf("%v %v", left, err)
	}
	if err := stacks.Release(); err != nil {
		t.Error(err)
	}
	if total := b.layers.Total(); total != (layers.Size{}) {
		t.Errorf("%+v", total)
	}
}
