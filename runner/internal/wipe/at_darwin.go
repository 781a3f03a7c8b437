package wipe

import (
	"syscall"
	"unsafe"
)

const (
	sysOpenat   = 463
	sysRenameat = 465
	sysUnlinkat = 472
	atRemoveDir = 0x80
)

func isDirAt(dir int, name string) bool {
	fd, err := openDir(dir, name)
	if err != nil {
		return err == syscall.EACCES
	}
	_ = syscall.Close(fd)
	return true
}

func openDir(dir int, name string) (int, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return -1, err
	}
	fd, _, errno := syscall.Syscall6(sysOpenat, uintptr(dir), uintptr(unsafe.Pointer(p)),
		syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func rename(fromDir int, from string, toDir int, to string) error {
	p, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	q, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(sysRenameat, uintptr(fromDir), uintptr(unsafe.Pointer(p)), uintptr(toDir),
		uintptr(unsafe.Pointer(q)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
