package tree

import (
	"syscall"
	"unsafe"
)

// Unlink removes an entry of an open directory. flags are RemoveDir for a directory, else 0.
func Unlink(dir int, name string, flags uintptr) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(sysUnlinkat, uintptr(dir), uintptr(unsafe.Pointer(p)), flags)
	if errno != 0 {
		return errno
	}
	return nil
}
