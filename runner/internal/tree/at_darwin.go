package tree

import (
	"syscall"
	"unsafe"
)

const (
	sysOpenat   = 463
	sysRenameat = 465
	sysUnlinkat = 472
	// RemoveDir is the flag of Unlink for a directory.
	RemoveDir = 0x80
)

// open opens a directory whose entries are to be removed.
func (r *Remover) open(dir int, name string) (int, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return -1, err
	}
	fd, _, errno := syscall.Syscall6(sysOpenat, uintptr(dir), uintptr(unsafe.Pointer(p)),
		syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	if r.Enter != nil {
		if err := r.Enter(int(fd)); err != nil {
			_ = syscall.Close(int(fd))
			return -1, r.reenter(dir, err)
		}
	}
	return int(fd), nil
}

func grantOwner(int, string) error { return syscall.ENOTSUP }

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
