package tenants

import (
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/proc"
)

const (
	// pauseTimeout bounds how long processes may take to stop.
	pauseTimeout = 2 * time.Second
	// sleepTimeout is how long a signalled process that sleeps in the kernel counts as running: it runs
	// none of its own code before it stops. A parent may wait in the kernel for a child that is stopped.
	sleepTimeout = 100 * time.Millisecond
	pausePause   = 500 * time.Microsecond
)

// Pause stops the processes of a slot for a while. Its methods are not for concurrent use.
type Pause struct{ stopped []proc.Process }

// Begin stops all processes of the slot until End, except those that are stopped already.
func (s *Pause) Begin(t *Tenants) error {
	var err error
	t.threads.Do(func() { err = s.stop(t) })
	if err != nil {
		s.End(t)
	}
	return err
}

func (s *Pause) stop(t *Tenants) error {
	for began := time.Now(); ; time.Sleep(pausePause) {
		all, err := t.snapshot()
		if err != nil {
			return err
		}
		running := 0
		for _, p := range t.selectSlot(all) {
			signalled := slices.ContainsFunc(s.stopped, func(q proc.Process) bool {
				return q.PID == p.PID && q.Start == p.Start
			})
			stopping := signalled || p.State == 'T' // by the tenant: it is not continued either
			switch state := runningState(p); {
			case state == 0:
				continue
			case state == 'D' && stopping && time.Since(began) > sleepTimeout:
				continue
			}
			running++
			if !stopping {
				s.stopped = append(s.stopped, p)
				signalProc(p, syscall.SIGSTOP)
			}
		}
		if running == 0 {
			return nil
		}
		if time.Since(began) > pauseTimeout {
			return &ipc.Error{Kind: "busy", Message: "the processes of the slot do not stop"}
		}
	}
}

// runningState returns the state of a thread of p that is not stopped, if possible of one that does
// not sleep in the kernel; 0 if there is none. The first thread may be stopped, or have ended, before
// the others.
func runningState(p proc.Process) (state byte) {
	states := []byte{p.State}
	if p.Threads > 1 {
		tasks := "/proc/" + strconv.Itoa(p.PID) + "/task/"
		entries, err := os.ReadDir(tasks)
		if err != nil {
			return 0 // it has ended
		}
		states = states[:0]
		buffer := make([]byte, 1024)
		for _, e := range entries {
			if fields := proc.Fields(proc.Read(tasks+e.Name()+"/stat", buffer)); len(fields) > 0 {
				states = append(states, fields[0][0])
			}
		}
	}
	for _, each := range states {
		if !slices.Contains([]byte{'T', 't', 'Z', 'X'}, each) && (state == 0 || state == 'D') {
			state = each
		}
	}
	return state
}

// End continues the processes that Begin has stopped.
func (s *Pause) End(t *Tenants) {
	t.threads.Do(func() {
		for _, p := range s.stopped {
			signalProc(p, syscall.SIGCONT)
		}
	})
	s.stopped = nil
}
