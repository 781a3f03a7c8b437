package disk

import (
	"os"
	"syscall"
	"unsafe"
)

const (
	getFlags     = 0x80086601 // FS_IOC_GETFLAGS of 64-bit systems
	setFlags     = 0x40086602 // FS_IOC_SETFLAGS
	topDirectory = 0x00020000 // FS_TOPDIR_FL
)

// Spread has ext4 place each new directory in dir, with what is then made in it, in a part of the disk
// that its name decides. Other file systems ignore it.
//
// Not the obvious code: see docs/why-not-obvious.md ("Slots apart on the disk").
func Spread(dir string) {
	file, err := os.Open(dir)
	if err != nil {
		return
	}
	defer file.Close()
	var flags [2]uint32 // the kernel's type is long, of which it uses an int
	if callIoctl(file, getFlags, &flags) {
		flags[0] |= topDirectory
		callIoctl(file, setFlags, &flags)
	}
}

func callIoctl(file *os.File, request uintptr, flags *[2]uint32) bool {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), request, uintptr(unsafe.Pointer(flags)))
	return errno == 0
}
