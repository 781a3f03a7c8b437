package limits

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/ipc"
)

const (
	rlimitCPU    = 0
	rlimitFsize  = 1
	rlimitCore   = 4
	rlimitNproc  = 6
	rlimitNofile = 7
)

// AgentThreads is how many tasks of a slot's agent count against a limit of processes by uid.
const AgentThreads = 40

// SetProcess sets the limits that children inherit and that do not harm this process.
func SetProcess(l ipc.Limits, names []string) error {
	if err := setRlimit(0, rlimitCore, 0); err != nil {
		return err
	}
	if slices.Contains(names, "file_size_mb") && l.FileSizeMB != nil {
		if err := setRlimit(0, rlimitFsize, uint64(*l.FileSizeMB)<<20); err != nil {
			return err
		}
	}
	if slices.Contains(names, "pids") && l.PIDs != nil {
		count := uint64(*l.PIDs)
		if syscall.Geteuid() != 0 {
			count += AgentThreads
		}
		return setRlimit(0, rlimitNproc, count)
	}
	return nil
}

// HasOwnPIDLimit reports whether a pid namespace has its own highest process number (since Linux
// 6.14). Before, there is one for the whole machine.
func HasOwnPIDLimit() bool { return isKernelFrom(6, 14) }

// CountsByNamespace reports whether the kernel counts a user's processes for each user namespace
// apart (since Linux 5.14).
func CountsByNamespace() bool { return isKernelFrom(5, 14) }

// HasMemoryAttributes reports whether files in memory can have the attributes that a layer of an
// overlay needs (since Linux 6.6).
func HasMemoryAttributes() bool { return isKernelFrom(6, 6) }

func isKernelFrom(wantedMajor, wantedMinor int) bool {
	var name syscall.Utsname
	if syscall.Uname(&name) != nil {
		return false
	}
	var major, minor int
	var release []byte
	for _, c := range name.Release {
		release = append(release, byte(c))
	}
	_, _ = fmt.Sscanf(string(release), "%d.%d", &major, &minor)
	return major > wantedMajor || major == wantedMajor && minor >= wantedMinor
}

// LowerOpenFiles lowers the limit of open files of this process and its commands by a quarter. The
// kernel counts descriptors in flight by user, over all slots and sandboxes, and refuses a process
// whose own limit is below that count: this makes it refuse commands before the runner. If Go has
// raised the soft limit (to one below the hard limit), nothing is lowered, because commands would
// get the raised limit.
func LowerOpenFiles() error {
	var now syscall.Rlimit
	if err := prlimit(0, rlimitNofile, nil, &now); err != nil {
		return fmt.Errorf("rlimit %d: %w", rlimitNofile, err)
	}
	if now.Cur != now.Max {
		return nil
	}
	return setRlimit(0, rlimitNofile, now.Max-now.Max/4)
}

// NeedsChildLimits reports whether each command needs limits that the agent itself could not live
// with.
func NeedsChildLimits(l ipc.Limits) bool { return l.OpenFiles != nil || l.CPUTimeS != nil }

// SetChildLimits sets these limits on a command that has not run yet.
func SetChildLimits(pid int, l ipc.Limits) error {
	if l.OpenFiles != nil {
		if err := setRlimit(pid, rlimitNofile, uint64(*l.OpenFiles)); err != nil {
			return err
		}
	}
	if l.CPUTimeS != nil {
		return setRlimit(pid, rlimitCPU, uint64(max(1, *l.CPUTimeS+0.999)))
	}
	return nil
}

// setRlimit lowers the soft and the hard limit; a lower limit stays.
func setRlimit(pid, resource int, value uint64) error {
	var old syscall.Rlimit
	if err := prlimit(pid, resource, nil, &old); err != nil {
		return fmt.Errorf("rlimit %d: %w", resource, err)
	}
	value = min(value, old.Max)
	if err := prlimit(pid, resource, &syscall.Rlimit{Cur: value, Max: value}, nil); err != nil {
		return fmt.Errorf("rlimit %d: %w", resource, err)
	}
	return nil
}

func prlimit(pid, resource int, value, old *syscall.Rlimit) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), uintptr(resource),
		uintptr(unsafe.Pointer(value)), uintptr(unsafe.Pointer(old)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
