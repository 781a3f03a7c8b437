package serve

import (
	"syscall"
	"unsafe"
)

// setWindow sets the size of a terminal.
func setWindow(fd uintptr, rows, cols uint16) syscall.Errno {
	size := [4]uint16{rows, cols}
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size)))
	return errno
}
