package tree

import (
	"strconv"
	"syscall"
)

const (
	sysUnlinkat = syscall.SYS_UNLINKAT
	// RemoveDir is the flag of Unlink for a directory.
	RemoveDir = 0x200
	oPath     = 0x200000
	openFlags = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
)

// open opens a directory whose entries are to be removed.
func (r *Remover) open(dir int, name string) (int, error) {
	if r.Enter == nil {
		fd, err := syscall.Openat(dir, name, openFlags, 0)
		if err == syscall.EACCES && r.Force && grantOwner(dir, name) == nil {
			return syscall.Openat(dir, name, openFlags, 0)
		}
		return fd, err
	}
	// Enter comes before the reading, because it may take the rights of the owner.
	handle, err := openHandle(dir, name)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(handle)
	if err := r.Enter(handle); err != nil {
		return -1, r.reenter(dir, err)
	}
	fd, err := syscall.Openat(handle, ".", openFlags, 0)
	if err == syscall.EACCES && r.Force && chmod(handle) == nil {
		fd, err = syscall.Openat(handle, ".", openFlags, 0)
	}
	if err != nil {
		return -1, r.reenter(dir, err)
	}
	return fd, nil
}

func openHandle(dir int, name string) (int, error) {
	return syscall.Openat(dir, name, oPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
}

func chmod(handle int) error { return syscall.Chmod("/proc/self/fd/"+strconv.Itoa(handle), 0o700) }

// grantOwner gives the owner of a directory all rights in it.
func grantOwner(dir int, name string) error {
	handle, err := openHandle(dir, name)
	if err != nil {
		return err
	}
	defer syscall.Close(handle)
	return chmod(handle)
}

func rename(fromDir int, from string, toDir int, to string) error {
	return syscall.Renameat(fromDir, from, toDir, to)
}
