package ipc

import "syscall"

// receiveFlags make received descriptors close-on-exec at once. Another thread may fork a command at
// any time: the command would keep a pipe open whose reader waits for its end.
const receiveFlags = syscall.MSG_CMSG_CLOEXEC

func socketpair() ([2]int, error) {
	return syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
}
