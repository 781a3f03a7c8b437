package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/files"
	"hermes-exec/runner/internal/ipc"
)

// doFile carries out a file operation on a thread that has the slot's rights. While it works for
// another user, the thread has that user's rights.
func (a *agent) doFile(ctx context.Context, op ipc.FileOp, m *ipc.Message) (any, []int, error) {
	if op.User != "" {
		user, err := a.userFor(op.User)
		if err != nil {
			return nil, nil, err
		}
		if op.Params, err = expandHome(op.Params, user.Home); err != nil {
			return nil, nil, badRequest(err)
		}
		back, err := become(a.setup, user)
		if err != nil {
			return nil, nil, err
		}
		defer back()
	}
	var data *os.File
	if len(m.FDs) > 0 {
		data = os.NewFile(uintptr(m.FDs[0]), "data")
		m.FDs = m.FDs[1:]
	}
	result, err := files.Do(ctx, files.Env{Workdir: string(op.Workdir), Tmp: a.setup.Tmp}, op, data)
	if err != nil {
		return nil, nil, err
	}
	return result, nil, nil
}

// expandHome replaces ~ at the start of the paths of a file operation.
func expandHome(params json.RawMessage, home string) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(params, &fields); err != nil {
		return nil, err
	}
	for _, name := range []string{"path", "source", "target"} {
		var at ipc.Bytes
		if json.Unmarshal(fields[name], &at) != nil {
			continue
		}
		rest, ok := strings.CutPrefix(string(at), "~")
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		expanded, err := json.Marshal(ipc.Bytes(strings.TrimSuffix(home, "/") + "/" + strings.TrimPrefix(rest, "/")))
		if err != nil {
			return nil, err
		}
		fields[name] = expanded
	}
	return json.Marshal(fields)
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
