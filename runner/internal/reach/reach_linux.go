package reach

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/ipc"
)

const (
	sysOpenat2   = 437
	noMagicLinks = 0x2
	oPath        = 0x200000
	procMagic    = 0x9fa0
	// maxLinkSize is above the length of any path in /proc.
	maxLinkSize = 512
)

// open follows no link of /proc to a file that a process has open, if the kernel can distinguish
// those (since Linux 5.6).
func open(path string, flags int, perm uint32) (int, error) {
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	if flags&syscall.O_CREAT == 0 {
		perm = 0
	}
	at := -100 // the working directory
	how := struct{ flags, mode, resolve uint64 }{
		flags: uint64(flags | syscall.O_CLOEXEC), mode: uint64(perm), resolve: noMagicLinks}
	for {
		fd, _, errno := syscall.Syscall6(sysOpenat2, uintptr(at), uintptr(unsafe.Pointer(name)),
			uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
		switch errno {
		case 0:
			return int(fd), nil
		case syscall.EINTR, syscall.EAGAIN:
			continue
		case syscall.ENOSYS, syscall.EPERM: // a kernel or a seccomp profile without openat2
			return syscall.Open(path, flags|syscall.O_CLOEXEC, perm)
		case syscall.ELOOP:
			if isNoLoop(path, flags) {
				return -1, newRefusal(path, procLinkReason)
			}
		}
		return -1, errno
	}
}

// isNoLoop reports whether a path leads somewhere, so that ELOOP was not a loop.
func isNoLoop(path string, flags int) bool {
	fd, err := syscall.Open(path, oPath|syscall.O_CLOEXEC|flags&syscall.O_NOFOLLOW, 0)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return err == nil && flags&syscall.O_NOFOLLOW == 0
}

// Check refuses an open file of /proc that belongs to this process or the runner.
func Check(file *os.File) error {
	var refused error
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { refused = check(int(fd), file.Name()) }); err != nil {
		return err
	}
	return refused
}

func check(fd int, path string) error {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(fd, &s); err != nil || int64(s.Type) != procMagic {
		return err
	}
	var link [maxLinkSize]byte
	n, err := syscall.Readlink("/proc/self/fd/"+strconv.Itoa(fd), link[:])
	if errors.Is(err, syscall.ELOOP) {
		return nil // in a root of the slot's own this process is not visible
	}
	if err != nil {
		return newRefusal(path, ownProcessReason) // its path is unknown
	}
	for part := range strings.SplitSeq(string(link[:n]), "/") {
		if pid, err := strconv.Atoi(part); err == nil {
			if isHidden(pid) {
				return newRefusal(path, ownProcessReason)
			}
			break
		}
	}
	return nil
}

// isHidden reports whether a number in /proc is a thread of this process or of the runner.
func isHidden(pid int) bool {
	if pid == os.Getpid() {
		return true
	}
	var st syscall.Stat_t
	number := strconv.Itoa(pid)
	for _, program := range []string{"self", strconv.FormatInt(runnerPID.Load(), 10)} {
		if program == number || syscall.Lstat("/proc/"+program+"/task/"+number, &st) == nil {
			return true
		}
	}
	return false
}

// checkDir refuses path if its directory is refused.
func checkDir(dir, path string) error {
	fd, err := open(dir, oPath|syscall.O_DIRECTORY, 0)
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			return nil // the operation itself will report it
		}
		return newRefusal(path, procLinkReason)
	}
	defer syscall.Close(fd)
	return check(fd, path)
}

func newRefusal(path, why string) error {
	return &ipc.Error{Kind: "os", Errno: "EACCES", Path: ipc.Bytes(path), Message: path + ": " + why}
}

const (
	ownProcessReason = "belongs to the sandbox's own programs; a command sees itself in /proc/self"
	procLinkReason   = "leads through a link of /proc to an open file of a process, which file operations do not follow"
)
