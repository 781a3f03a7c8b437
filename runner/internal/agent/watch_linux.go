package agent

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

const watchEvery = 200 * time.Millisecond

// watch holds a memory limit where no cgroup can: it ends the largest process
// of the slot whenever all of them together have more than limit bytes of
// memory of their own. What grows faster than it looks gets further first.
func (a *agent) watch(limit int64) {
	for range time.Tick(watchEvery) {
		a.killers.do(func() { a.watchOnce(limit) })
	}
}

func (a *agent) watchOnce(limit int64) {
	all, err := a.snapshot()
	if err != nil {
		return
	}
	var total, most int64
	var largest proc
	for _, p := range a.tenants(all) {
		own := ownMemory(p.pid)
		total += own
		if own > most {
			most, largest = own, p
		}
	}
	if total > limit && largest.pid != 0 {
		a.watched.Add(1)
		signalProc(largest, syscall.SIGKILL)
	}
}

// ownMemory is what a process has resident and does not share.
func ownMemory(pid int) int64 {
	var buf [256]byte
	f := bytes.Fields(slurp("/proc/"+strconv.Itoa(pid)+"/statm", buf[:]))
	if len(f) < 3 {
		return 0
	}
	resident, err1 := strconv.ParseInt(string(f[1]), 10, 64)
	shared, err2 := strconv.ParseInt(string(f[2]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return (resident - shared) * int64(os.Getpagesize())
}
