package limits

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

const inChild = "HERMES_EXEC_TEST_COUNTERS"

func limit(t *testing.T, resource int) syscall.Rlimit {
	t.Helper()
	var now syscall.Rlimit
	if err := prlimit(0, resource, nil, &now); err != nil {
		t.Fatal(err)
	}
	return now
}

// Two at once give the process back the limits that it had.
func TestWithCountersGivesTheLimitsBack(t *testing.T) {
	before := limit(t, rlimitSigpending)
	failed := errors.New("failed")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			err := WithCounters(func() error {
				if now := limit(t, rlimitSigpending); now.Cur > 1024 || now.Max != before.Max {
					t.Errorf("meanwhile %+v", now)
				}
				return failed
			})
			if err != failed {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if after := limit(t, rlimitSigpending); after != before {
		t.Errorf("%+v, not %+v", after, before)
	}
}

// A lowered limit stays lowered, so this runs in a process of its own.
func TestSetCounters(t *testing.T) {
	own := os.Getenv(inChild) == "own"
	if os.Getenv(inChild) == "" {
		for _, whose := range []string{"own", "shared"} {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestSetCounters$", "-test.count=1")
			cmd.Env = append(os.Environ(), inChild+"="+whose)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", whose, err, out)
			}
		}
		return
	}
	before := map[int]uint64{}
	for _, c := range counters {
		before[c.resource] = limit(t, c.resource).Max
	}
	if err := SetCounters(own); err != nil {
		t.Fatal(err)
	}
	want := map[int]uint64{
		rlimitSigpending: min(1024, before[rlimitSigpending]/4),
		rlimitMsgqueue:   before[rlimitMsgqueue] / 4,
		rlimitMemlock:    before[rlimitMemlock],
	}
	if own {
		want = map[int]uint64{
			rlimitSigpending: min(1024, before[rlimitSigpending]),
			rlimitMsgqueue:   before[rlimitMsgqueue],
			rlimitMemlock:    min(64<<20, before[rlimitMemlock]),
		}
	}
	for resource, value := range want {
		if now := limit(t, resource); now.Cur > value || now.Max != value {
			t.Errorf("limit %d: %+v, not %d", resource, now, value)
		}
	}
}

// Also of namespaces: where an ordinary user's are used up, no slot can be made.
func TestNamespaceShare(t *testing.T) {
	most := NamespaceShare()
	if _, err := os.Stat("/proc/sys/user/max_user_namespaces"); err == nil && most["max_user_namespaces"] == 0 {
		t.Errorf("%v", most)
	}
	for name, value := range most {
		text, err := os.ReadFile("/proc/sys/user/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil || value > max(1, all/4) {
			t.Errorf("%s: %d of %d, %v", name, value, all, err)
		}
	}
}

// gVisor refuses to set limits that it does not have: a filter stands for it here.
func TestLimitsThatAKernelDoesNotHave(t *testing.T) {
	if os.Getenv(inChild) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLimitsThatAKernelDoesNotHave$", "-test.count=1")
		cmd.Env = append(os.Environ(), inChild+"=refused")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	runtime.LockOSThread()
	const prSetNoNewPrivs, prSetSeccomp, filterMode = 38, 22, 2
	const load, equal, answer, refuse, allow = 0x20, 0x15, 0x06, 0x00050000 | uint32(syscall.EPERM), 0x7fff0000
	program := []syscall.SockFilter{
		{Code: load, K: 0}, {Code: equal, K: syscall.SYS_PRLIMIT64, Jf: 5},
		{Code: load, K: 16 + 8*2}, {Code: equal, K: 0, Jt: 3}, // only asks
		{Code: load, K: 16 + 8}, {Code: equal, K: rlimitSigpending, Jf: 1},
		{Code: answer, K: refuse}, {Code: answer, K: allow},
	}
	filter := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSeccomp, filterMode,
		uintptr(unsafe.Pointer(&filter))); errno != 0 {
		t.Skip(errno)
	}
	before, queues := limit(t, rlimitSigpending), limit(t, rlimitMsgqueue)
	if err := prlimit(0, rlimitSigpending, &before, nil); err != syscall.EPERM {
		t.Fatalf("the filter does not refuse: %v", err)
	}
	if err := errors.Join(WithCounters(func() error { return nil }), SetCounters(false)); err != nil {
		t.Error(err)
	}
	if after := limit(t, rlimitMsgqueue); after.Max != queues.Max/4 {
		t.Errorf("the others are not lowered: %+v of %+v", after, queues)
	}
}
