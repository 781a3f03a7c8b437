package tenants

import (
	"slices"
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

// Pause stops all processes of the slot until Resume, except those that are stopped already.
func (t *Tenants) Pause() error {
	var err error
	t.threads.Do(func() { err = t.pause() })
	if err != nil {
		t.Resume()
	}
	return err
}

func (t *Tenants) pause() error {
	for began := time.Now(); ; time.Sleep(pausePause) {
		all, err := t.snapshot()
		if err != nil {
			return err
		}
		running := 0
		for _, p := range t.selectSlot(all) {
			switch {
			case slices.Contains([]byte{'T', 't', 'Z', 'X'}, p.State):
				continue
			case p.State == 'D' && time.Since(began) > sleepTimeout && t.isPaused(p):
				continue
			}
			running++
			if !t.isPaused(p) {
				t.paused = append(t.paused, p)
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

func (t *Tenants) isPaused(p proc.Process) bool {
	return slices.ContainsFunc(t.paused, func(q proc.Process) bool { return q.PID == p.PID && q.Start == p.Start })
}

// Resume continues the processes that Pause has stopped.
func (t *Tenants) Resume() {
	t.threads.Do(func() {
		for _, p := range t.paused {
			signalProc(p, syscall.SIGCONT)
		}
		t.paused = nil
	})
}
