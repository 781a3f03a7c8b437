package users

import (
	"fmt"
	"os"
	"syscall"
)

// claim reserves a block of ids for this process within its network namespace, by an abstract
// socket name: the kernel gives a name to one process and frees it at its end.
func claim(block uint32) bool {
	ids, _ := os.Readlink("/proc/self/ns/user") // ids are the same in the same user namespace
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	if syscall.Bind(fd, &syscall.SockaddrUnix{Name: fmt.Sprintf("@hermes-exec %s %d", ids, block)}) != nil {
		_ = syscall.Close(fd)
		return false
	}
	return true
}
