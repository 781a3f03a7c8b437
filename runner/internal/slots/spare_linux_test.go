package slots

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/proc"
)

// agents returns the process numbers of all agents of this runner, also of the spare one.
func agents(t *testing.T) (pids []int) {
	t.Helper()
	names, err := proc.Numbers()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		var buf [1024]byte
		p, ok := proc.ParseStat(proc.Read("/proc/"+name+"/stat", buf[:]))
		command, _ := os.ReadFile("/proc/" + name + "/cmdline")
		isAgent := strings.HasPrefix(string(command), "runner\x00agent") &&
			!strings.Contains(string(command), isolation.EnterArg) // which starts an agent
		if ok && p.Parent == os.Getpid() && isAgent {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// awaitAgents waits until there are n agents, and returns those that are not among known.
func awaitAgents(t *testing.T, n int, known ...int) []int {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		all := agents(t)
		if len(all) == n {
			return slices.DeleteFunc(all, func(pid int) bool { return slices.Contains(known, pid) })
		}
		if time.Now().After(until) {
			t.Fatalf("agents %v, not %d", all, n)
		}
	}
}

func spareParams(level, slot string) CreateParams {
	return CreateParams{Slot: slot, Level: level, Network: true, PrivateRoot: true}
}

// agentAmong returns the process number of a slot's agent among candidates.
func agentAmong(b *sandbox, level, slot string, candidates []int) int {
	if level != isolation.Namespaces {
		pid, _ := strconv.Atoi(b.sh(slot, "echo $PPID"))
		return pid
	}
	own := b.sh(slot, "readlink /proc/self/ns/mnt")
	for _, pid := range candidates {
		if link, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); link == own {
			return pid
		}
	}
	return 0
}

func TestSpareAgentTakesTheNextSlot(t *testing.T) {
	for _, level := range levels() {
		if level == isolation.Landlock {
			continue // the rules of an agent name its slot's directories
		}
		t.Run(level, func(t *testing.T) {
			b := newSandbox(t, probed())
			b.create(spareParams(level, "a"))
			b.create(spareParams(level, "b"))
			b.sh("a", "true")
			first := awaitAgents(t, 2)
			spare := slices.DeleteFunc(slices.Clone(first), func(pid int) bool {
				return pid == agentAmong(b, level, "a", first)
			})
			if len(spare) != 1 {
				t.Fatalf("agents %v, spare %v", first, spare)
			}
			if got := agentAmong(b, level, "b", spare); got != spare[0] {
				t.Errorf("slot b has agent %d, not the spare agent %d", got, spare[0])
			}
			next := awaitAgents(t, 3, first...)
			// Its end costs the next slot nothing but time.
			if err := syscall.Kill(next[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
					t.Fatalf("%+v %v", r, err)
				}
				if out := b.sh("a", "echo on"); out != "on" {
					t.Errorf("%q", out)
				}
			}
			awaitAgents(t, 3)
			b.spare.Close()
			awaitAgents(t, 2)
			b.sh("a", "true")
			if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
				t.Fatalf("%+v %v", r, err)
			}
			if out := b.sh("a", "echo on"); out != "on" {
				t.Errorf("%q", out)
			}
			awaitAgents(t, 2)
		})
	}
}

func TestSpareAgentHoldsNothingOfASlot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root looks into an agent")
	}
	b := newSandbox(t, probed())
	level := levels()[len(levels())-1]
	p := spareParams(level, "a")
	p.Env = map[string]ipc.Bytes{"TOKEN": "of-the-first-slot"}
	b.create(p)
	b.sh("a", "echo of-the-first-slot > file; exec 9< file; true")
	all := awaitAgents(t, 2)
	spare := slices.DeleteFunc(all, func(pid int) bool { return pid == agentAmong(b, level, "a", all) })[0]
	at := fmt.Sprintf("/proc/%d/", spare)
	if env, err := os.ReadFile(at + "environ"); err != nil || len(env) > 0 {
		t.Errorf("environment %q %v", env, err)
	}
	fds, err := filepath.Glob(at + "fd/*")
	if err != nil || len(fds) == 0 {
		t.Fatal(fds, err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(fd)
		if strings.HasPrefix(to, b.base) {
			t.Errorf("%s is open", to)
		}
	}
	table, err := os.ReadFile(at + "mountinfo")
	if err != nil || strings.Contains(string(table), b.base) {
		t.Errorf("mounts of slots: %s %v", table, err)
	}
}

func TestSpareAgentOfAnotherKindIsReplaced(t *testing.T) {
	if f := probed(); f.Method == isolation.MethodNone || !f.Loopback {
		t.Skip("no network namespaces here")
	}
	b := newSandbox(t, probed())
	b.create(spareParams(isolation.Namespaces, "a"))
	p := spareParams(isolation.Namespaces, "b")
	p.Network = false
	b.create(p)
	network := "readlink /proc/self/ns/net"
	theirs, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if got := b.sh("a", network); got != theirs {
		t.Errorf("network %s, not %s", got, theirs)
	}
	awaitAgents(t, 2)
	if got := b.sh("b", network); got == theirs {
		t.Error("the slot without a network has the sandbox's")
	}
	awaitAgents(t, 3)
	if r, err := b.Reset(context.Background(), "a"); err != nil || !r.Clean {
		t.Fatalf("%+v %v", r, err)
	}
	if got := b.sh("a", network); got != theirs {
		t.Errorf("network %s, not %s, after a reset", got, theirs)
	}
}

// The kernel counts resources of a user namespace for its owner.
func TestInTheSandboxSpareAgentsHaveOwnersOfTheirOwn(t *testing.T) {
	b, _ := ownRoot(t, "")
	b.create(rootParams("b", ""))
	for range 3 {
		b.sh("a", "true")
		awaitAgents(t, 2)
		b.sh("b", "true")
		owners := map[uint32]int{}
		all := awaitAgents(t, 3)
		for _, pid := range all {
			owners[namespaceOwner(t, pid)]++
		}
		if len(owners) != len(all) {
			t.Errorf("owners %v of agents %v", owners, all)
		}
		for _, slot := range []string{"a", "b"} {
			if r, err := b.Reset(context.Background(), slot); err != nil || !r.Clean {
				t.Fatalf("%+v %v", r, err)
			}
		}
		awaitAgents(t, 1)
	}
}

func namespaceOwner(t *testing.T, pid int) (owner uint32) {
	t.Helper()
	const getOwner = 0xb704 // NS_GET_OWNER_UID
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), getOwner,
		uintptr(unsafe.Pointer(&owner))); errno != 0 {
		t.Fatal(errno)
	}
	return owner
}
