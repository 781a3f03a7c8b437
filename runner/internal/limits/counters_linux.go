package limits

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"hermes-exec/runner/internal/bounded"
)

const (
	rlimitMemlock    = 8
	rlimitSigpending = 11
	rlimitMsgqueue   = 12
)

// userShare is the fraction of a user's limit that a slot may have if the kernel counts other
// programs of that user together with the slot.
const userShare = 4

// counters are the resource limits that the kernel counts by user: own limits a slot that is
// counted alone, shared a slot that is counted with others. A lower limit of the sandbox stays.
var counters = []struct {
	resource    int
	own, shared func(limit uint64) uint64
}{
	{rlimitSigpending, atMost(1024), func(limit uint64) uint64 { return min(1024, limit/userShare) }}, // and timers
	{rlimitMsgqueue, keepLimit, func(limit uint64) uint64 { return limit / userShare }},
	{rlimitMemlock, atMost(64 << 20), keepLimit}, // nearly all of it is counted by process
}

func atMost(most uint64) func(uint64) uint64 {
	return func(limit uint64) uint64 { return min(most, limit) }
}

func keepLimit(limit uint64) uint64 { return limit }

// SetCounters limits this process and its children. own reports that the kernel counts nobody else
// together with the slot.
func SetCounters(own bool) error {
	for _, c := range counters {
		now, err := counter(c.resource)
		if err != nil {
			return err
		}
		most := c.shared(now.Max)
		if own {
			most = c.own(now.Max)
		}
		if err := lowerLimit(c.resource, syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	return nil
}

var lowering sync.Mutex

// WithCounters runs do while this process has the limits of a slot: a new user namespace takes them
// for all its users together. The hard limits stay, and the process gets its own limits back
// afterwards.
func WithCounters(do func() error) error {
	lowering.Lock()
	defer lowering.Unlock()
	for _, c := range counters {
		now, err := counter(c.resource)
		if err != nil {
			return err
		}
		if err := lowerLimit(c.resource, syscall.Rlimit{Cur: min(c.own(now.Max), now.Cur), Max: now.Max}); err != nil {
			return err
		}
		defer func() { _ = prlimit(0, c.resource, &now, nil) }()
	}
	return do()
}

func counter(resource int) (now syscall.Rlimit, err error) {
	if err = prlimit(0, resource, nil, &now); err != nil {
		err = fmt.Errorf("rlimit %d: %w", resource, err)
	}
	return now, err
}

// MaxProcesses returns the limit on processes and threads of this process's user, and whether there
// is one.
func MaxProcesses() (most uint64, limited bool) {
	limit, err := counter(rlimitNproc)
	return limit.Cur, err == nil && limit.Cur != ^uint64(0)
}

// lowerLimit sets a limit of this process. gVisor refuses limits that it does not have; a sandbox
// there has a kernel, and counters, of its own.
func lowerLimit(resource int, to syscall.Rlimit) error {
	if err := prlimit(0, resource, &to, nil); err != nil && !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("rlimit %d: %w", resource, err)
	}
	return nil
}

// namespaceDirectory holds the limits of a user namespace: inotify, fanotify, and namespaces of
// each kind.
const namespaceDirectory = "/proc/sys/user/"

// NamespaceShare returns a slot's share of the limits of this process's user, by file.
func NamespaceShare() map[string]int64 {
	out := map[string]int64{}
	_ = bounded.EachName(namespaceDirectory, func(name string) bool {
		text, _ := bounded.ReadWhole(namespaceDirectory+name, bounded.SettingSize)
		// A namespace without limits of its own shows huge numbers.
		if most, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && most < math.MaxInt32 {
			out[name] = max(1, most/userShare)
		}
		return true
	})
	return out
}

// SetNamespace sets the limits of this process's user namespace. If the kernel's settings cannot be
// written, only the limits of the user apply.
func SetNamespace(most map[string]int64) {
	for name, value := range most {
		_ = os.WriteFile(namespaceDirectory+name, []byte(strconv.FormatInt(value, 10)), 0)
	}
}
