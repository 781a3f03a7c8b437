package tree

import (
	"syscall"
	"unsafe"
)

// unlink removes an entry. flags choose between files and directories.
func unlink(dir int, name string, flags uintptr) error {
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
