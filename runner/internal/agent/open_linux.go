package agent

import "syscall"

// openNew creates a file that was not there, private to the slot's user.
func openNew(dir int, name string) (int, error) {
	return syscall.Openat(dir, name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
}
