package serve

import (
	"net"
	"syscall"
	"unsafe"
)

// processEnded gives what tells of the end of the process at the other end of
// a socket; nil where the kernel does not know it in this way (before 6.5).
func processEnded(c *net.UnixConn) func() bool {
	const soPeerPidfd = 77
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	process := -1
	if raw.Control(func(fd uintptr) { process, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, soPeerPidfd) }) != nil || err != nil {
		return nil
	}
	syscall.CloseOnExec(process)
	return func() bool { return readable(process) }
}

// readable says whether there is something to read now; in a descriptor of a
// process that is its end.
func readable(fd int) bool {
	const pollIn = 1
	poll := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: pollIn}
	var now syscall.Timespec
	n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return errno == 0 && n == 1 && poll.revents&pollIn != 0
}
