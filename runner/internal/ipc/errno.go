package ipc

import (
	"fmt"
	"syscall"
)

var errnoNames = map[syscall.Errno]string{
	syscall.EPERM: "EPERM", syscall.ENOENT: "ENOENT", syscall.ESRCH: "ESRCH", syscall.EINTR: "EINTR",
	syscall.EIO:   "EIO",
	syscall.ENXIO: "ENXIO", syscall.E2BIG: "E2BIG", syscall.ENOEXEC: "ENOEXEC", syscall.EBADF: "EBADF",
	syscall.ECHILD: "ECHILD",
	syscall.EAGAIN: "EAGAIN", syscall.ENOMEM: "ENOMEM", syscall.EACCES: "EACCES", syscall.EBUSY: "EBUSY",
	syscall.EEXIST: "EEXIST",
	syscall.EXDEV:  "EXDEV", syscall.ENODEV: "ENODEV", syscall.ENOTDIR: "ENOTDIR", syscall.EISDIR: "EISDIR",
	syscall.EINVAL: "EINVAL",
	syscall.ENFILE: "ENFILE", syscall.EMFILE: "EMFILE", syscall.ETXTBSY: "ETXTBSY", syscall.EFBIG: "EFBIG",
	syscall.ENOSPC: "ENOSPC",
	syscall.ENOTTY: "ENOTTY", syscall.ESPIPE: "ESPIPE", syscall.EROFS: "EROFS", syscall.EMLINK: "EMLINK",
	syscall.EPIPE: "EPIPE", syscall.ENAMETOOLONG: "ENAMETOOLONG",
	syscall.ENOTEMPTY: "ENOTEMPTY", syscall.ELOOP: "ELOOP", syscall.EDQUOT: "EDQUOT", syscall.ENOSYS: "ENOSYS",
	syscall.EOPNOTSUPP:   "EOPNOTSUPP",
	syscall.ECONNREFUSED: "ECONNREFUSED", syscall.ETIMEDOUT: "ETIMEDOUT", syscall.EHOSTUNREACH: "EHOSTUNREACH",
	syscall.ENETUNREACH: "ENETUNREACH", syscall.ECONNRESET: "ECONNRESET", syscall.ESTALE: "ESTALE",
	syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.EADDRINUSE: "EADDRINUSE",
}

// ErrnoName returns the symbolic name of a system error ("ENOENT"), or "EUNKNOWN".
func ErrnoName(e syscall.Errno) string {
	if name, ok := errnoNames[e]; ok {
		return name
	}
	return "EUNKNOWN"
}

// OSError returns the error of a system call about a path, with the failed action.
func OSError(action, path string, err error) error {
	e := AsError(err)
	if e.Kind == "internal" {
		return e
	}
	return &Error{Kind: "os", Message: fmt.Sprintf("%s: %v", action, err), Errno: e.Errno, Path: Bytes(path)}
}
