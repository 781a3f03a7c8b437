package agent

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// argvBudget bounds how long a listing reads arguments: a process that forks
// all the time keeps its memory locked against readers.
const argvBudget = 500 * time.Millisecond

// processes lists what lives in the slot.
func (a *agent) processes() ipc.Processes {
	out := ipc.Processes{Processes: []ipc.Process{}}
	a.killers.do(func() {
		all, err := a.snapshot()
		if err != nil {
			return
		}
		tenants := a.tenants(all)
		claimed := a.claim(tenants, a.setup.Track.Count == 0)
		began := time.Now()
		boot := began.Add(-time.Duration(isolation.BootTicks()) * 10 * time.Millisecond)
		for pid, p := range tenants {
			shown := []ipc.Bytes{}
			if time.Since(began) < argvBudget {
				shown = argv(pid)
			}
			out.Processes = append(out.Processes, ipc.Process{
				PID: pid, Argv: shown, StartedAt: float64(boot.Add(time.Duration(p.start)*10*time.Millisecond).UnixMilli()) / 1000,
				RSS: p.rssPages * int64(os.Getpagesize()), Token: claimed.token[pid], State: string(p.state),
			})
		}
	})
	slices.SortFunc(out.Processes, func(x, y ipc.Process) int { return x.PID - y.PID })
	return out
}

// argv is what the process shows; a tenant can make it anything. One that shows
// nothing, as in the middle of an exec, has its short name in brackets, as ps
// has it.
func argv(pid int) []ipc.Bytes {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return []ipc.Bytes{}
	}
	if len(data) == 0 {
		var buf [64]byte
		return []ipc.Bytes{ipc.Bytes("[" + strings.TrimSuffix(string(slurp("/proc/"+strconv.Itoa(pid)+"/comm", buf[:])), "\n") + "]")}
	}
	const most = 64 << 10
	data = data[:min(len(data), most)]
	out := []ipc.Bytes{}
	for _, part := range bytes.Split(bytes.TrimSuffix(data, []byte{0}), []byte{0}) {
		out = append(out, ipc.Bytes(part))
	}
	return out
}
