package tenants

import (
	"os"
	"slices"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/proc"
)

const (
	// argvTimeout bounds how long a listing reads arguments: a process that forks all the time
	// keeps its memory locked against readers.
	argvTimeout = 500 * time.Millisecond
	// maxArgvBytes bounds the arguments of all processes of a listing.
	maxArgvBytes = 4 << 20
	// argOverhead is the cost of an argument besides its bytes.
	argOverhead = 16
)

// Processes lists the living processes of the slot.
func (t *Tenants) Processes() ipc.Processes {
	out := ipc.Processes{Processes: []ipc.Process{}}
	t.threads.Do(func() {
		all, err := t.snapshot()
		if err != nil {
			return
		}
		tenants := t.selectSlot(all)
		claimed := t.claim(tenants, t.setup.Track.Count == 0)
		began, room := time.Now(), maxArgvBytes
		boot := began.Add(-time.Duration(proc.BootTicks()) * 10 * time.Millisecond)
		for pid, p := range tenants {
			argv := []ipc.Bytes{}
			if time.Since(began) < argvTimeout && room > 0 {
				argv = proc.Argv(pid)
				for _, arg := range argv {
					room -= len(arg) + argOverhead
				}
			}
			started := boot.Add(time.Duration(p.Start) * 10 * time.Millisecond)
			out.Processes = append(out.Processes, ipc.Process{
				PID: pid, Argv: argv, StartedAt: float64(started.UnixMilli()) / 1000,
				RSS: p.RSSPages * int64(os.Getpagesize()), Token: claimed.token[pid], State: string(p.State),
			})
		}
	})
	slices.SortFunc(out.Processes, func(x, y ipc.Process) int { return x.PID - y.PID })
	return out
}
