package limits

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
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

// What is lowered stays so: in a process of its own.
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
