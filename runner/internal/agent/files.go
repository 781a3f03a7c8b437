package agent

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/files"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/isolation"
)

// doFile carries out a file operation on a thread that has the slot's rights.
func doFile(ctx context.Context, s isolation.Setup, op ipc.FileOp, m *ipc.Message) (any, []int, error) {
	var data *os.File
	if len(m.FDs) > 0 {
		data = os.NewFile(uintptr(m.FDs[0]), "data")
		m.FDs = m.FDs[1:]
	}
	result, err := files.Do(ctx, files.Env{Workdir: string(op.Workdir), Tmp: s.Tmp}, op, data)
	if err != nil {
		return nil, nil, err
	}
	return result, nil, nil
}

// createSpill creates a file in the slot's tmp directory, as the slot's user.
func createSpill(tmp string, s ipc.Spill) (any, []int, error) {
	if s.Name == "" || strings.ContainsAny(s.Name, "/\x00") || s.Name == "." || s.Name == ".." {
		return nil, nil, &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf("spill name %q", s.Name)}
	}
	at := path.Join(tmp, s.Name)
	fd, err := syscall.Open(at, syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC,
		0o600)
	if err != nil {
		return nil, nil, ipc.OSError("spill", at, err)
	}
	return ipc.SpillResult{Path: ipc.Bytes(at)}, []int{fd}, nil
}
