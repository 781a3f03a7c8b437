package pipe

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// OpenTerminal opens a terminal on the calling thread, whose user will own it.
func OpenTerminal(rows, cols uint16) (master, slave int, err error) {
	master, err = syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	fail := func(err error) (int, int, error) {
		_ = syscall.Close(master)
		return -1, -1, err
	}
	unlock := int32(0)
	if errno := ioctl(master, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock))); errno != 0 {
		return fail(errno)
	}
	peer, err := openSlave(master)
	if err != nil {
		return fail(err)
	}
	window := [4]uint16{rows, cols}
	if errno := ioctl(master, syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&window))); errno != 0 {
		_ = syscall.Close(peer)
		return fail(errno)
	}
	return master, peer, nil
}

// openSlave opens the other end of a terminal: through its master if the kernel can (not gVisor),
// else by its name.
func openSlave(master int) (int, error) {
	const tiocGPTPeer = 0x5441
	const flags = syscall.O_RDWR | syscall.O_NOCTTY | syscall.O_CLOEXEC
	peer, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), tiocGPTPeer, flags)
	if errno != syscall.ENOTTY && errno != syscall.EINVAL {
		if errno != 0 {
			return -1, errno
		}
		return int(peer), nil
	}
	number := uint32(0)
	if errno := ioctl(master, syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number))); errno != 0 {
		return -1, errno
	}
	return syscall.Open(fmt.Sprintf("/dev/pts/%d", number), flags, 0)
}

func ioctl(fd int, request, arg uintptr) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, arg)
	return errno
}
