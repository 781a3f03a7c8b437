package agent

import (
	"os"
	"syscall"

	"hermes-exec/runner/internal/ipc"
)

// longestSocketPath is what the kernel takes on every platform.
const longestSocketPath = 103

// listen makes a UNIX socket that only the slot's user may connect to, as the
// slot, and returns its descriptor.
func listen(l ipc.Listen) (any, []int, error) {
	at := string(l.Path)
	if len(at) > longestSocketPath {
		return nil, nil, osError("listen", at, syscall.ENAMETOOLONG)
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, osError("listen", at, err)
	}
	for _, step := range []func() error{
		func() error { return syscall.Bind(fd, &syscall.SockaddrUnix{Name: at}) },
		func() error { return os.Chmod(at, 0o600) },
		func() error { return syscall.Listen(fd, syscall.SOMAXCONN) },
	} {
		if err := step(); err != nil {
			_ = syscall.Close(fd)
			return nil, nil, osError("listen", at, err)
		}
	}
	return struct{}{}, []int{fd}, nil
}
