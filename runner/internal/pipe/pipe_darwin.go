package pipe

import (
	"syscall"
	"unsafe"
)

const (
	fionread    = 0x4004667f
	GetTerminal = syscall.TIOCGETA
	NoCharacter = 0xff // the value of a disabled control character of a terminal
)

func rawPipe() (r, w int, err error) {
	var fds [2]int
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := syscall.Pipe(fds[:]); err != nil {
		return 0, 0, err
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	return fds[0], fds[1], nil
}

// PendingBytes returns how many bytes can be read at once.
func PendingBytes(fd uintptr) int {
	var n int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, fionread, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}

// Widen does nothing on this system.
func Widen(int) {}
