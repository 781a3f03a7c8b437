package pipe

import (
	"syscall"
	"unsafe"
)

// setNonblocking sets the flags of a new descriptor, which has no others.
func setNonblocking(fd int) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFL, syscall.O_NONBLOCK); errno != 0 {
		return errno
	}
	return nil
}

// SetWindow sets the size of a terminal.
func SetWindow(fd uintptr, rows, cols uint16) syscall.Errno {
	size := [4]uint16{rows, cols}
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size)))
	return errno
}
