package main

import (
	"syscall"
	"unsafe"
)

func windowSize(fd uintptr) (rows, cols uint16, err error) {
	var size struct{ rows, cols, x, y uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0, 0, errno
	}
	return size.rows, size.cols, nil
}
