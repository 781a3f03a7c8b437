//go:build darwin

package tenants

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"hermes-exec/runner/internal/children"
	"hermes-exec/runner/internal/diskspace"
	"hermes-exec/runner/internal/ipc"
)

// Tenants are the processes of the slot.
type Tenants struct {
	table   *children.Table
	killing sync.Mutex // held while the whole slot is ended
}

// New returns the Tenants of a slot; the processes in table are its commands.
func New(table *children.Table) *Tenants { return &Tenants{table: table} }

// Kill ends the process group of a command. It cannot spare the command itself.
func (t *Tenants) Kill(request ipc.Kill) (ipc.Receipt, error) {
	if request.Since > 0 {
		return ipc.Receipt{Handles: []string{}}, nil
	}
	grace := time.Duration(min(max(request.GraceS, 0), 3) * float64(time.Second))
	return t.killGroups([]uint64{request.Token}, grace), nil
}

// Pause is unsupported on this system.
type Pause struct{}

// Begin is unsupported on this system.
func (Pause) Begin(*Tenants) error { return errors.ErrUnsupported }

// End is unsupported on this system.
func (Pause) End(*Tenants) {}

// KillAll ends the process groups of all commands.
func (t *Tenants) KillAll() ipc.Receipt {
	t.killing.Lock()
	defer t.killing.Unlock()
	return t.killGroups(t.table.Tokens(), 0)
}

// killGroups ends process groups, the only handle on this system.
func (t *Tenants) killGroups(tokens []uint64, grace time.Duration) ipc.Receipt {
	began := time.Now()
	receipt := ipc.Receipt{Handles: []string{"process_group"}, Rounds: 1}
	for _, token := range tokens {
		c, ok := t.table.Get(token)
		if !ok || syscall.Kill(-c.PID, 0) != nil {
			continue
		}
		receipt.Found++
		t.table.MarkKilled(token, func(int) string { return "" })
		if grace > 0 {
			_ = syscall.Kill(-c.PID, syscall.SIGTERM)
			_ = syscall.Kill(-c.PID, syscall.SIGCONT)
			waitForGroupEnd(c.PID, grace)
		}
		_ = syscall.Kill(-c.PID, syscall.SIGKILL)
		if waitForGroupEnd(c.PID, 2*time.Second) {
			receipt.Killed++
		} else {
			receipt.Left++
		}
	}
	receipt.DurationS = time.Since(began).Seconds()
	return receipt
}

func waitForGroupEnd(group int, within time.Duration) bool {
	for until := time.Now().Add(within); time.Now().Before(until); time.Sleep(2 * time.Millisecond) {
		if syscall.Kill(-group, 0) != nil {
			return true
		}
	}
	return false
}

// Processes lists the leaders; without /proc no others can be found.
func (t *Tenants) Processes() ipc.Processes {
	out := ipc.Processes{Processes: []ipc.Process{}}
	for pid, token := range t.table.Running() {
		out.Processes = append(out.Processes, ipc.Process{PID: pid, Argv: []ipc.Bytes{}, Token: token, State: "R"})
	}
	return out
}

// Transient returns the leaders.
func (t *Tenants) Transient() ipc.Transient { return ipc.Transient{Processes: t.Processes().Processes} }

// MeasureOpenFiles returns nothing: without /proc open files cannot be found.
func (t *Tenants) MeasureOpenFiles() diskspace.Usage { return diskspace.Usage{} }
