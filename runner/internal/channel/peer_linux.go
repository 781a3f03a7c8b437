package channel

import (
	"net"
	"os"
	"syscall"

	"hermes-exec/runner/internal/initproc"
)

// watchPeer returns a function that reports whether the process at the other end of a socket has
// ended. It returns nil if the kernel cannot open a pidfd of the peer (before 6.5).
func watchPeer(c *net.UnixConn) func() bool {
	const soPeerPidfd = 77
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	process := -1
	if raw.Control(func(fd uintptr) {
		process, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, soPeerPidfd)
	}) != nil || err != nil {
		return nil
	}
	syscall.CloseOnExec(process)
	return func() bool { return initproc.WaitReadable(process, 0) }
}

// isHungUp reports whether the other end of a stream is closed.
func isHungUp(stream *os.File) bool { return initproc.IsHungUp(int(stream.Fd())) }
