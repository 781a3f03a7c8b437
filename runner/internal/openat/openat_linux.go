package openat

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// Directories and flags of the calls.
const (
	WorkingDir      = -100
	SymlinkNofollow = 0x100
	oPath           = 0x200000
	DirFlags        = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	// FileFlags do not wait for a FIFO that has replaced a file.
	FileFlags    = syscall.O_RDONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	NewFileFlags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	// maxTarget is one more than the longest target of a symbolic link.
	maxTarget = 4096
)

// Open opens an entry without a change of its access time, where the user may do that.
func Open(dir int, name string, flags int) (int, error) {
	fd, err := syscall.Openat(dir, name, flags|syscall.O_NOATIME, 0)
	if err == syscall.EPERM {
		return syscall.Openat(dir, name, flags, 0)
	}
	return fd, err
}

// The modes with which the owner of a file reads it, and of a directory visits its entries.
const (
	OwnerReads  = 0o400
	OwnerVisits = 0o500
)

// IsLocked reports whether the mode of an entry keeps its owner out, who is this process and not root.
func IsLocked(st *syscall.Stat_t, mode uint32) bool {
	return os.Geteuid() != 0 && int(st.Uid) == os.Geteuid() && st.Mode&mode != mode
}

// OpenLocked opens a file or a directory, also one whose mode keeps its owner out: it changes the mode
// for a moment.
func OpenLocked(dir int, name string, flags int) (int, error) {
	fd, err := Open(dir, name, flags)
	if err != syscall.EACCES {
		return fd, err
	}
	handle, err := OpenHandle(dir, name)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(handle)
	var st syscall.Stat_t
	if err := syscall.Fstat(handle, &st); err != nil {
		return -1, err
	}
	kind := st.Mode & syscall.S_IFMT
	if kind != syscall.S_IFREG && kind != syscall.S_IFDIR || !IsLocked(&st, OwnerReads) {
		return -1, syscall.EACCES
	}
	if err := syscall.Chmod(HandlePath(handle), st.Mode&0o7777|OwnerReads); err != nil {
		return -1, err
	}
	defer syscall.Chmod(HandlePath(handle), st.Mode&0o7777)
	return Open(WorkingDir, HandlePath(handle), flags&^syscall.O_NOFOLLOW)
}

// Stat describes an entry itself, also a symbolic link.
func Stat(dir int, name string, st *syscall.Stat_t) error {
	number := uintptr(79) // arm64
	if runtime.GOARCH == "amd64" {
		number = 262
	}
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return Result(syscall.Syscall6(number, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(st)),
		SymlinkNofollow, 0, 0))
}

// ReadLink returns the target of a symbolic link.
func ReadLink(dir int, name string) (string, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	var target [maxTarget]byte
	n, err := Count(syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&target)), maxTarget, 0, 0))
	return string(target[:n]), err
}

// Symlink makes a symbolic link.
func Symlink(target string, dir int, name string) error {
	p, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	q, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return Result(syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(p)), uintptr(dir),
		uintptr(unsafe.Pointer(q))))
}

// Link gives a file another name.
func Link(fromDir int, from string, toDir int, to string) error {
	p, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	q, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	return Result(syscall.Syscall6(syscall.SYS_LINKAT, uintptr(fromDir), uintptr(unsafe.Pointer(p)), uintptr(toDir),
		uintptr(unsafe.Pointer(q)), 0, 0))
}

// SetTimes sets the times of access and modification of an entry, or of dir itself if name is
// empty.
func SetTimes(dir int, name string, times [2]syscall.Timespec) error {
	if name == "" {
		return Result(syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), 0, uintptr(unsafe.Pointer(&times)), 0, 0,
			0))
	}
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return Result(syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(&times)), SymlinkNofollow, 0, 0))
}

// OpenHandle opens an entry of any type without any effect on it. HandlePath leads to it.
func OpenHandle(dir int, name string) (int, error) {
	return syscall.Openat(dir, name, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
}

// HandlePath returns a path that leads to an open handle.
func HandlePath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Result returns the error of a system call.
func Result(_, _ uintptr, errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// Count returns the number that a system call returns, or its error.
func Count(n, _ uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
