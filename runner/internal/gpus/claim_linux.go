package gpus

import (
	"io"
	"os"
	"syscall"
)

// claim reserves a device node by an abstract socket name: the kernel gives a name to one process,
// and frees it at its end. It returns nil if another slot has it.
func claim(node string) io.Closer {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if syscall.Bind(fd, &syscall.SockaddrUnix{Name: "@hermes-exec gpu " + node}) != nil {
		_ = syscall.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), node)
}
