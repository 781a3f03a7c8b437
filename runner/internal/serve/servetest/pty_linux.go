package servetest

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/link"
)

func openPTY(size *link.PTY) (master int, slave *os.File, err error) {
	master, err = syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	if err != nil {
		return 0, nil, err
	}
	var number, unlock int32
	window := [4]uint16{size.Rows, size.Cols}
	for _, call := range []struct {
		request uintptr
		arg     unsafe.Pointer
	}{{syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)}, {syscall.TIOCGPTN, unsafe.Pointer(&number)}, {syscall.TIOCSWINSZ, unsafe.Pointer(&window)}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), call.request, uintptr(call.arg)); errno != 0 {
			_ = syscall.Close(master)
			return 0, nil, errno
		}
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		_ = syscall.Close(master)
	}
	return master, slave, err
}
