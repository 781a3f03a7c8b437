package wipe

import (
	"syscall"
	"unsafe"
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
	_, _, errno := syscall.Syscall(sysUnlinkat, uintptr(dir), uintptr(unsafe.Pointer(p)), flags)
	if errno == syscall.EACCES && syscall.Fchmod(dir, 0o700) == nil {
		_, _, errno = syscall.Syscall(sysUnlinkat, uintptr(dir), uintptr(unsafe.Pointer(p)), flags)
	}
	if errno != 0 {
		return errno
	}
	return nil
}
