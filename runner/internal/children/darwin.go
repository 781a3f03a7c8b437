//go:build darwin

package children

import (
	"runtime"
	"slices"
	"syscall"
	"time"

	"hermes-exec/runner/internal/ipc"
)

// Reap waits for every child.
func (t *Table) Reap() {
	runtime.LockOSThread()
	for {
		var s status
		t.forked.Arm()
		pid, err := syscall.Wait4(-1, &s.wait, 0, &s.usage)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			t.forked.Wait()
		default:
			if c := t.recordEnd(pid, s); c != nil {
				t.announce(c, t.exitOf(c, s))
			}
		}
	}
}

// AwaitShortly does not wait: the reaper reports the exit.
func (t *Table) AwaitShortly(*Command, time.Duration) *ipc.Exit {
	t.Wake()
	return nil
}

// Tokens returns the tokens of all commands in the table.
func (t *Table) Tokens() []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.tokens)
}

// Running maps the pids of commands that run to their tokens.
func (t *Table) Running() map[int]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[int]uint64{}
	for pid, c := range t.byPID {
		out[pid] = c.Token
	}
	return out
}

func maxRSS(u syscall.Rusage) int64 { return u.Maxrss }
