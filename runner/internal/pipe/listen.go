package pipe

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"

	"hermes-exec/runner/internal/ipc"
)

// longestSocketPath is the longest path that every platform accepts.
const longestSocketPath = 103

// Listen makes a UNIX socket at a path, with the rights and in the view of the calling thread, for
// its user alone, and returns the descriptor.
func Listen(l ipc.Listen) (int, error) {
	fd, err := listen(string(l.Path))
	if err != nil {
		return -1, ipc.OSError("listen", string(l.Path), err)
	}
	return fd, nil
}

// ListenTCP makes a TCP socket in the slot's network and returns the descriptor. The address is free
// again once all copies of the descriptor are closed, whatever its connections do (SO_REUSEADDR).
func ListenTCP(ctx context.Context, l ipc.ListenTCP) (int, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // Go's default costs time, and the loopback has one path
	socket, err := config.Listen(ctx, "tcp", net.JoinHostPort(l.Host, strconv.Itoa(l.Port)))
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) { // the caller adds the address
			err = errno
		}
		return -1, err
	}
	defer socket.Close()
	return descriptor(socket.(*net.TCPListener))
}

func listen(path string) (int, error) {
	if len(path) > longestSocketPath {
		return -1, syscall.ENAMETOOLONG
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return -1, err
	}
	for _, step := range []func() error{
		func() error { return syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}) },
		func() error { return os.Chmod(path, 0o600) },
		func() error { return syscall.Listen(fd, syscall.SOMAXCONN) },
	} {
		if err := step(); err != nil {
			_ = syscall.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}
