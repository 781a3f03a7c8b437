package tenants

import (
	"fmt"
	"syscall"

	"hermes-exec/runner/internal/ipc"
)

// Signal signals the process group of a running command.
func (t *Tenants) Signal(s ipc.Signal) (struct{}, error) {
	if s.Number < 1 || s.Number > 64 {
		return struct{}{}, &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf("signal %d", s.Number)}
	}
	err := t.table.WhileAlive(s.Token, func(pid int) error { return syscall.Kill(-pid, syscall.Signal(s.Number)) })
	if err != nil {
		return struct{}{}, ipc.OSError("signal", "", err)
	}
	return struct{}{}, nil
}
