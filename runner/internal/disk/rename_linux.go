package disk

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

const (
	atFDCWD   = -100
	noReplace = 1 // RENAME_NOREPLACE
)

// renameat2Number returns the number of renameat2, which package syscall lacks. It is the same
// everywhere except on amd64.
func renameat2Number() uintptr {
	if runtime.GOARCH == "amd64" {
		return 316
	}
	return 276
}

// RenameNoReplace renames, and fails with EEXIST if target exists.
func RenameNoReplace(source, target string) error {
	from, err := syscall.BytePtrFromString(source)
	if err != nil {
		return err
	}
	to, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	cwd := atFDCWD
	_, _, errno := syscall.Syscall6(renameat2Number(), uintptr(cwd), uintptr(unsafe.Pointer(from)), uintptr(cwd),
		uintptr(unsafe.Pointer(to)), noReplace, 0)
	switch errno {
	case 0:
		return nil
	case syscall.EINVAL, syscall.ENOSYS: // a file system or kernel without the flag
		if _, err := os.Lstat(target); err == nil {
			return syscall.EEXIST
		}
		return os.Rename(source, target)
	}
	return errno
}
