package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/bounded"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/proc"
)

var controllers = []string{"memory", "pids", "cpu"}

// Probe returns the hierarchies in which the runner can make a group below its own.
func Probe() (version string, out []Group) {
	own := ownCgroups()
	mounts, err := proc.Mounts()
	if err != nil {
		return "none", nil
	}
	for _, m := range mounts {
		if m.Kind == "cgroup2" {
			out = append(out, v2Groups(below(m.Path, m.Root, own[""]))...)
		}
		if m.Kind != "cgroup" {
			continue
		}
		for _, c := range controllers {
			if dir := below(m.Path, m.Root, own[c]); hasWord(m.Super, c) && own[c] != "" && isEnforced(c, dir) &&
				canMakeGroup(dir) {
				out = append(out, Group{Controller: c, Dir: dir})
			}
		}
	}
	version = "none"
	for _, c := range out {
		if c.V2 {
			return "v2", out
		}
		version = "v1"
	}
	return version, out
}

// below returns the directory of group path under a mount whose root is root.
func below(mount, root, path string) string {
	return filepath.Join(mount, strings.TrimPrefix(path, strings.TrimSuffix(root, "/")))
}

func hasWord(list, word string) bool {
	for _, w := range strings.Split(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

func ownCgroups() map[string]string {
	out := map[string]string{}
	data, err := bounded.ReadWhole("/proc/self/cgroup", bounded.SettingSize)
	if err != nil {
		return out
	}
	for _, line := range strings.Split(string(data), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			out[c] = f[2]
		}
	}
	return out
}

// isEnforced reports whether the kernel enforces a controller. gVisor's memory and cpu controllers
// only store the numbers that are written to them.
func isEnforced(controller, dir string) bool {
	sign := map[string]string{"memory": "memory.oom_control", "cpu": "cpu.stat"}[controller]
	_, err := os.Stat(filepath.Join(dir, sign))
	return err == nil
}

func canMakeGroup(dir string) bool {
	trial := filepath.Join(dir, fmt.Sprintf("hermes-exec-probe-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if os.Mkdir(trial, 0o755) != nil {
		return false
	}
	return syscall.Rmdir(trial) == nil
}

func v2Groups(dir string) []Group {
	data, err := bounded.ReadWhole(filepath.Join(dir, "cgroup.controllers"), bounded.SettingSize)
	if err != nil || !canMakeGroup(dir) {
		return nil
	}
	var out []Group
	for _, c := range controllers {
		for _, have := range strings.Fields(string(data)) {
			if have == c {
				out = append(out, Group{Controller: c, Dir: dir, V2: true})
			}
		}
	}
	return out
}

// Make makes the slot's groups and sets its limits on them. how maps each limit that is enforced to
// its mechanism; the caller enforces the rest.
func Make(groups []Group, name string, l ipc.Limits) (joins []Join, how map[string]string, err error) {
	how = map[string]string{}
	if l.MemoryMB == nil && l.PIDs == nil && l.CPUs == nil {
		return nil, how, nil
	}
	settings := map[string]func(dir string, v2 bool) error{}
	if l.MemoryMB != nil {
		settings["memory"] = func(dir string, v2 bool) error { return setMemory(dir, v2, *l.MemoryMB<<20) }
	}
	if l.PIDs != nil {
		settings["pids"] = func(dir string, v2 bool) error { return setPIDs(dir, v2, *l.PIDs) }
	}
	if l.CPUs != nil {
		settings["cpu"] = func(dir string, v2 bool) error { return setCPU(dir, v2, *l.CPUs) }
	}
	newDirs := map[string]bool{}
	for _, c := range groups {
		apply := settings[c.Controller]
		if apply == nil || how[limitNames[c.Controller]] != "" {
			continue
		}
		if c.V2 {
			if err := delegate(c.Dir); err != nil {
				continue
			}
		}
		dir := filepath.Join(c.Dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			continue
		}
		if err := apply(dir, c.V2); err != nil {
			if !newDirs[dir] {
				_ = syscall.Rmdir(dir)
			}
			continue
		}
		version := "v1"
		if c.V2 {
			version = "v2"
		}
		how[limitNames[c.Controller]] = "cgroup " + version
		if !newDirs[dir] {
			joins = append(joins, Join{Controller: c.Controller, Dir: dir, V2: c.V2})
		}
		newDirs[dir] = true
	}
	return joins, how, nil
}

var limitNames = map[string]string{"memory": "memory_mb", "pids": "pids", "cpu": "cpus"}

// delegate enables controllers for children of a version 2 group. The group's own processes must
// move to a leaf first.
func delegate(dir string) error {
	on, err := bounded.ReadWhole(filepath.Join(dir, "cgroup.subtree_control"), bounded.SettingSize)
	if err == nil && strings.Contains(string(on), "memory") && strings.Contains(string(on), "pids") {
		return nil
	}
	leaf := filepath.Join(dir, "hermes-exec-runner")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	pids, err := bounded.ReadWhole(filepath.Join(dir, "cgroup.procs"), bounded.TableSize)
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(pids)) {
		if err := set(leaf, "cgroup.procs", pid); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	for _, c := range controllers {
		if err := set(dir, "cgroup.subtree_control", "+"+c); err != nil && !errors.Is(err, syscall.ENOENT) &&
			!errors.Is(err, syscall.EINVAL) {
			return err
		}
	}
	return nil
}

func set(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

func setMemory(dir string, v2 bool, bytes int64) error {
	value := strconv.FormatInt(bytes, 10)
	if v2 {
		// Without swap accounting there is nothing to set.
		_ = set(dir, "memory.swap.max", "0")
		return set(dir, "memory.max", value)
	}
	if err := set(dir, "memory.limit_in_bytes", value); err != nil {
		return err
	}
	_ = set(dir, "memory.memsw.limit_in_bytes", value)
	return nil
}

// setPIDs adds room for two threads of the agent, which are in a version 1 group so that their
// children start there.
func setPIDs(dir string, v2 bool, count int64) error {
	if !v2 {
		count += 2
	}
	return set(dir, "pids.max", strconv.FormatInt(count, 10))
}

func setCPU(dir string, v2 bool, cpus float64) error {
	const period = 100000
	quota := strconv.FormatInt(max(1000, int64(cpus*period)), 10)
	if v2 {
		return set(dir, "cpu.max", quota+" "+strconv.Itoa(period))
	}
	if err := set(dir, "cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
		return err
	}
	return set(dir, "cpu.cfs_quota_us", quota)
}

// holds reports whether the limit of a controller is set in this group. Controllers of version 2
// share a directory.
func (j Join) holds(controller string) bool { return j.V2 || j.Controller == controller }

// LiftCPU removes the limit on processor time from a slot's groups. The returned function restores
// it.
func LiftCPU(joins []Join) (restore func() error) {
	for _, j := range joins {
		if !j.holds("cpu") {
			continue
		}
		file, none := "cpu.cfs_quota_us", "-1"
		if j.V2 {
			file, none = "cpu.max", "max"
		}
		was, err := bounded.ReadWhole(filepath.Join(j.Dir, file), bounded.SettingSize)
		limit := strings.TrimSpace(string(was))
		if err == nil && !strings.HasPrefix(limit, none) && set(j.Dir, file, none) == nil {
			return func() error { return set(j.Dir, file, limit) }
		}
	}
	return func() error { return nil }
}

// Remove removes the groups of a slot whose processes have ended.
func Remove(joins []Join) error {
	var first error
	for _, j := range joins {
		err := syscall.Rmdir(j.Dir)
		for wait := time.Millisecond; errors.Is(err, syscall.EBUSY) && wait < 500*time.Millisecond; wait *= 2 {
			// The last task leaves its group a little after it was waited for.
			time.Sleep(wait)
			err = syscall.Rmdir(j.Dir)
		}
		if err != nil && !errors.Is(err, syscall.ENOENT) && first == nil {
			first = &os.PathError{Op: "rmdir", Path: j.Dir, Err: err}
		}
	}
	return first
}

// ThreadJoin puts the calling thread into a version 1 group, so that its children start there.
func (j Join) ThreadJoin() error { return set(j.Dir, "tasks", "0") }

// OOMFile opens a counter of out-of-memory kills that counts this slot's processes. It returns nil
// if there is none. own reports whether it counts only this slot's processes.
func OOMFile(joins []Join) (file *os.File, own bool) {
	for _, j := range joins {
		if !j.holds("memory") {
			continue
		}
		if f, err := os.Open(filepath.Join(j.Dir, oomName(j.V2))); err == nil {
			return f, true
		}
	}
	return SandboxOOMFile(), false
}

// SandboxOOMFile opens the counter of the whole sandbox. On a host without a group for the runner
// it is the system's counter.
func SandboxOOMFile() *os.File {
	own := ownCgroups()
	for _, p := range []string{"/sys/fs/cgroup/memory" + own["memory"] + "/memory.oom_control",
		"/sys/fs/cgroup/memory/memory.oom_control",
		"/sys/fs/cgroup" + own[""] + "/memory.events", "/sys/fs/cgroup/memory.events", "/proc/vmstat"} {
		if f, err := os.Open(p); err == nil {
			if _, ok := ReadOOM(f); ok {
				return f
			}
			f.Close()
		}
	}
	return nil
}

func oomName(v2 bool) string {
	if v2 {
		return "memory.events"
	}
	return "memory.oom_control"
}

// ReadOOM reads a counter of out-of-memory kills.
func ReadOOM(f *os.File) (int64, bool) {
	if f == nil {
		return 0, false
	}
	// The files of cgroups are short; /proc/vmstat is not.
	var short [256]byte
	n, _ := f.ReadAt(short[:], 0)
	if n < len(short) {
		return oomLine(short[:n])
	}
	long := make([]byte, 16<<10)
	n, _ = f.ReadAt(long, 0)
	return oomLine(long[:n])
}

func oomLine(data []byte) (int64, bool) {
	for line := range bytes.Lines(data) {
		if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			count, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return count, err == nil
		}
	}
	return 0, false
}
