package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Quota is the use and the limit of a resource in one cgroup.
type Quota struct{ used, limit *os.File }

// Quotas are the quotas of a slot's own groups and of its sandbox; nil means no limit. Their files
// are held open because a view may hide the paths.
type Quotas struct{ PIDs, Memory, SandboxPIDs, SandboxMemory *Quota }

var quotaFiles = map[string]map[bool][2]string{
	"pids":   {false: {"pids.current", "pids.max"}, true: {"pids.current", "pids.max"}},
	"memory": {false: {"memory.usage_in_bytes", "memory.limit_in_bytes"}, true: {"memory.current", "memory.max"}},
}

// OpenQuotas opens the quotas of a slot with these groups.
func OpenQuotas(joins []Join) Quotas {
	r := Quotas{SandboxPIDs: sandboxQuota("pids"), SandboxMemory: sandboxQuota("memory")}
	for _, j := range joins {
		if j.holds("pids") {
			r.PIDs = openQuota("pids", j.Dir, j.V2)
		}
		if j.holds("memory") {
			r.Memory = openQuota("memory", j.Dir, j.V2)
		}
	}
	return r
}

// sandboxQuota opens the quota of the runner's own group.
func sandboxQuota(controller string) *Quota {
	own, v1 := ownCgroups(), "/sys/fs/cgroup/"+controller
	for _, dir := range []string{v1 + own[controller], v1} {
		if r := openQuota(controller, dir, false); r != nil {
			return r
		}
	}
	for _, dir := range []string{"/sys/fs/cgroup" + own[""], "/sys/fs/cgroup"} {
		if r := openQuota(controller, dir, true); r != nil {
			return r
		}
	}
	return nil
}

// IsSandboxFull reports whether the sandbox has reached its limit of processes.
func IsSandboxFull() bool {
	r := sandboxQuota("pids")
	defer r.Close()
	return r.Available() <= 0
}

func openQuota(controller, dir string, v2 bool) *Quota {
	files := quotaFiles[controller][v2]
	used, err := os.Open(filepath.Join(dir, files[0]))
	if err != nil {
		return nil
	}
	most, err := os.Open(filepath.Join(dir, files[1]))
	if err != nil {
		used.Close()
		return nil
	}
	r := &Quota{used: used, limit: most}
	if r.Limit() == unlimited {
		r.Close()
		return nil
	}
	return r
}

// Close closes the files; a nil Quota has none.
func (r *Quota) Close() {
	if r != nil {
		r.used.Close()
		r.limit.Close()
	}
}

const unlimited = int64(1) << 62

// Limit returns the limit. A nil Quota is unlimited.
func (r *Quota) Limit() int64 {
	if r == nil {
		return unlimited
	}
	if most, ok := readNumber(r.limit); ok {
		return min(most, unlimited)
	}
	return unlimited
}

// Available returns how much is left: 0 or less when everything is used up.
func (r *Quota) Available() int64 {
	most := r.Limit()
	if most == unlimited {
		return unlimited
	}
	if used, ok := readNumber(r.used); ok {
		return most - used
	}
	return unlimited
}

func readNumber(f *os.File) (int64, bool) {
	var buf [32]byte
	n, _ := f.ReadAt(buf[:], 0)
	value, err := strconv.ParseInt(strings.TrimSpace(string(buf[:n])), 10, 64)
	return value, err == nil
}
