package layers

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

const (
	atWorkingDir      = -100
	atSymlinkNofollow = 0x100
	oPath             = 0x200000
	openDirFlags      = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	// openFileFlags do not wait for a FIFO that has replaced a file.
	openFileFlags = syscall.O_RDONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	newFileFlags  = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	// maxTarget is one more than the longest target of a symbolic link.
	maxTarget = 4096
)

// openAt opens an entry without a change of its access time, where the user may do that.
func openAt(dir int, name string, flags int) (int, error) {
	fd, err := syscall.Openat(dir, name, flags|syscall.O_NOATIME, 0)
	if err == syscall.EPERM {
		return syscall.Openat(dir, name, flags, 0)
	}
	return fd, err
}

// The modes with which the owner of a file reads it, and of a directory visits its entries.
const (
	ownerReads  = 0o400
	ownerVisits = 0o500
)

// isLocked reports whether the mode of an entry keeps its owner out, who is this process and not root.
func isLocked(st *syscall.Stat_t, mode uint32) bool {
	return os.Geteuid() != 0 && int(st.Uid) == os.Geteuid() && st.Mode&mode != mode
}

// openLocked opens a file or a directory, also one whose mode keeps its owner out: it changes the mode
// for a moment.
func openLocked(dir int, name string, flags int) (int, error) {
	fd, err := openAt(dir, name, flags)
	if err != syscall.EACCES {
		return fd, err
	}
	handle, err := openHandle(dir, name)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(handle)
	var st syscall.Stat_t
	if err := syscall.Fstat(handle, &st); err != nil {
		return -1, err
	}
	kind := st.Mode & syscall.S_IFMT
	if kind != syscall.S_IFREG && kind != syscall.S_IFDIR || !isLocked(&st, ownerReads) {
		return -1, syscall.EACCES
	}
	if err := syscall.Chmod(handlePath(handle), st.Mode&0o7777|ownerReads); err != nil {
		return -1, err
	}
	defer syscall.Chmod(handlePath(handle), st.Mode&0o7777)
	return openAt(atWorkingDir, handlePath(handle), flags&^syscall.O_NOFOLLOW)
}

// statAt describes an entry itself, also a symbolic link.
func statAt(dir int, name string, st *syscall.Stat_t) error {
	number := uintptr(79) // arm64
	if runtime.GOARCH == "amd64" {
		number = 262
	}
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return result(syscall.Syscall6(number, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(st)),
		atSymlinkNofollow, 0, 0))
}

func readLinkAt(dir int, name string) (string, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	var target [maxTarget]byte
	n, err := count(syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&target)), maxTarget, 0, 0))
	return string(target[:n]), err
}

func symlinkAt(target string, dir int, name string) error {
	p, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	q, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return result(syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(p)), uintptr(dir),
		uintptr(unsafe.Pointer(q))))
}

func linkAt(fromDir int, from string, toDir int, to string) error {
	p, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	q, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	return result(syscall.Syscall6(syscall.SYS_LINKAT, uintptr(fromDir), uintptr(unsafe.Pointer(p)), uintptr(toDir),
		uintptr(unsafe.Pointer(q)), 0, 0))
}

// setTimes sets the times of access and modification of an entry, or of dir itself if name is
// empty.
func setTimes(dir int, name string, times [2]syscall.Timespec) error {
	if name == "" {
		return result(syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), 0, uintptr(unsafe.Pointer(&times)), 0, 0,
			0))
	}
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return result(syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&times)), atSymlinkNofollow, 0, 0))
}

// openHandle opens an entry of any type without any effect on it. handlePath leads to it.
func openHandle(dir int, name string) (int, error) {
	return syscall.Openat(dir, name, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
}

func handlePath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func result(_, _ uintptr, errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

func count(n, _ uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
