package pipe

import (
	"syscall"
	"unsafe"
)

const (
	fionread    = 0x541b
	GetTerminal = syscall.TCGETS
	NoCharacter = 0 // the value of a disabled control character of a terminal
)

func rawPipe() (r, w int, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return 0, 0, err
	}
	return fds[0], fds[1], nil
}

// Widen enlarges a pipe if that is allowed: with a larger pipe the two ends wait for each other
// less often.
//
// Not the obvious code: see docs/why-not-obvious.md ("Pipes of 1 MiB").
func Widen(fd int) {
	const setPipeSize, size = 1031, 1 << 20
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), setPipeSize, size)
}

// PendingBytes returns how many bytes can be read at once.
func PendingBytes(fd uintptr) int {
	var n int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, fionread, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}
