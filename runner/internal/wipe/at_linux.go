package wipe

import (
	"strconv"
	"syscall"
)

const (
	sysUnlinkat = syscall.SYS_UNLINKAT
	atRemoveDir = 0x200
	atNoFollow  = 0x100
	oPath       = 0x200000
)

func isDirAt(dir int, name string) bool {
	fd, err := syscall.Openat(dir, name, oPath|syscall.O_NOFOLLOW|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

func openDir(dir int, name string) (int, error) {
	flags := syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fd, err := syscall.Openat(dir, name, flags, 0)
	if err != syscall.EACCES {
		return fd, err
	}
	handle, err := syscall.Openat(dir, name, oPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(handle)
	if err := syscall.Chmod("/proc/self/fd/"+strconv.Itoa(handle), 0o700); err != nil {
		return -1, err
	}
	return syscall.Openat(dir, name, flags, 0)
}

func rename(fromDir int, from string, toDir int, to string) error {
	return syscall.Renameat(fromDir, from, toDir, to)
}
