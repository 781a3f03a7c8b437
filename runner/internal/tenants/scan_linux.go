package tenants

import (
	"os"
	"strconv"
	"strings"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/proc"
)

// snapshot lists the living processes in /proc, without zombies. Processes older than any tenant
// matter only as ancestors.
func (t *Tenants) snapshot() (map[int]proc.Process, error) {
	names, err := proc.Numbers()
	if err != nil {
		return nil, err
	}
	credentials := t.setup.Switch
	out := make(map[int]proc.Process, len(names))
	buf := make([]byte, 8192)
	for _, name := range names {
		p, ok := proc.ParseStat(proc.Read("/proc/"+name+"/stat", buf))
		if !ok || p.Kernel {
			continue
		}
		if credentials && p.Start >= t.setup.Since && !p.ParseStatus(proc.Read("/proc/"+name+"/status", buf)) {
			continue
		}
		out[p.PID] = p
	}
	return out, nil
}

// selectSlot returns the processes of all that belong to the slot.
func (t *Tenants) selectSlot(all map[int]proc.Process) map[int]proc.Process {
	s := t.setup
	out := make(map[int]proc.Process, len(all))
	self := os.Getpid()
	switch {
	case s.View.Pids:
		for pid, p := range all {
			if pid != 1 {
				out[pid] = p
			}
		}
	case s.Level == isolation.Exclusive:
		t.selectSandbox(all, out)
	case s.Switch:
		for pid, p := range all {
			if pid != self && p.Start >= s.Since && (p.UIDs[0] == s.UID || p.UIDs[1] == s.UID || p.UIDs[2] == s.UID) {
				out[pid] = p
			}
		}
	default:
		for pid, p := range all {
			if pid != self && p.Start >= s.Since && (proc.IsDescendant(all, p, self) || t.isMarked(pid)) {
				out[pid] = p
			}
		}
	}
	return out
}

// selectSandbox adds the tenant's processes in the sandbox of an exclusive slot: all that started
// after the runner, except the runner, its ancestors and processes that came in from outside (their
// topmost ancestor has parent 0, because its parent is in another pid namespace).
func (t *Tenants) selectSandbox(all, out map[int]proc.Process) {
	serve, alive := all[t.setup.ServePID]
	ours := map[int]bool{os.Getpid(): true, 1: true}
	for p, ok := serve, alive; ok && !ours[p.PID]; p, ok = all[p.Parent] {
		ours[p.PID] = true
	}
	if alive {
		ours[serve.PID] = true
	}
	for pid, p := range all {
		if ours[pid] || p.Start < t.setup.Since {
			continue
		}
		if from := proc.Root(all, p); !ours[from] && all[from].Parent == 0 {
			continue
		}
		out[pid] = p
	}
}

// isMarked reports whether a process has this runner's mark in its initial environment.
func (t *Tenants) isMarked(pid int) bool {
	_, ok := t.markToken(pid)
	return ok
}

func (t *Tenants) markToken(pid int) (token uint64, ok bool) {
	slot := t.setup.Boot + "." + t.setup.Slot
	// A process that hides the mark behind a larger environment than is searched is treated like a
	// process without a mark: its ancestors and its age attribute it.
	ok = proc.Environ(pid, marker, func(value string) bool {
		token, ok = parseMark(value, slot)
		return ok
	})
	return token, ok
}

const marker = ipc.RequestVariable + "="

// Mark returns the variable that marks a command of the slot.
func Mark(token uint64, setup isolation.Setup) string {
	return marker + strconv.FormatUint(token, 10) + "." + setup.Boot + "." + setup.Slot
}

// parseMark parses the mark of a command of this slot.
func parseMark(value, slot string) (token uint64, ok bool) {
	number, of, ok := strings.Cut(value, ".")
	if !ok || of != slot {
		return 0, false
	}
	token, err := strconv.ParseUint(number, 10, 64)
	return token, err == nil
}
