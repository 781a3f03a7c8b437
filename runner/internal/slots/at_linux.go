package slots

import (
	"strconv"
	"syscall"
	"unsafe"
)

const (
	atRemoveDir = 0x200
	atNoFollow  = 0x100
	oPath       = 0x200000
)

// unlink removes an entry; a directory that forbids it is opened up once.
func unlink(dir int, name string, directory bool) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	flags := uintptr(0)
	if directory {
		flags = atRemoveDir
	}
	_, _, errno := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)), flags)
	if errno == syscall.EACCES && syscall.Fchmod(dir, 0o700) == nil {
		_, _, errno = syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)), flags)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

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
