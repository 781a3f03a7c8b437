package program

import (
	"errors"
	"strings"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/rights"
)

const (
	oPath   = 0x200000
	fdcwd   = -100
	execute = 1
)

// CheckDirectory checks that the thread may enter a working directory. The final "/." requires
// search permission on the directory itself.
func CheckDirectory(dir string) error {
	fd, err := syscall.Open(strings.TrimSuffix(dir, "/")+"/.", oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

// OpenDir is CheckDirectory for a path that may be a tenant's with other rights than the thread's:
// it follows no link of /proc to an open file.
func OpenDir(dir string) (int, error) {
	const (
		sysOpenat2   = 437
		noMagicLinks = 0x2
	)
	path, err := syscall.BytePtrFromString(strings.TrimSuffix(dir, "/") + "/.")
	if err != nil {
		return -1, err
	}
	at := fdcwd
	how := struct{ flags, mode, resolve uint64 }{
		flags: oPath | syscall.O_DIRECTORY | syscall.O_CLOEXEC, resolve: noMagicLinks}
	fd, _, errno := syscall.Syscall6(sysOpenat2, uintptr(at), uintptr(unsafe.Pointer(path)),
		uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// Lookup finds a program as a shell would.
func Lookup(name, cwd string, env []string) (string, syscall.Errno) {
	if strings.Contains(name, "/") {
		return name, checkExecutable(name, cwd)
	}
	search := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	result := syscall.ENOENT
	for _, dir := range strings.Split(search, ":") {
		if dir == "" {
			dir = "."
		}
		path := dir + "/" + name
		switch errno := checkExecutable(path, cwd); errno {
		case 0:
			return path, 0
		case syscall.EACCES:
			// A directory that may not be searched hides its programs and is skipped.
			if !errors.Is(rights.Accessible(fdcwd, absolute(dir, cwd), execute), syscall.EACCES) {
				result = errno
			}
		}
	}
	return "", result
}

func absolute(path, cwd string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return cwd + "/" + path
}

// checkExecutable checks path, relative to cwd, with the thread's rights.
func checkExecutable(path, cwd string) syscall.Errno {
	path = absolute(path, cwd)
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		errno := errnoOf(err)
		if errno == syscall.ENOTDIR {
			return syscall.ENOENT
		}
		return errno
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return syscall.EACCES
	}
	if err := rights.Accessible(fdcwd, path, execute); err != nil && err != syscall.ENOSYS {
		errno := errnoOf(err)
		return errno
	}
	return 0
}

// errnoOf returns the errno of a system error.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return syscall.EINVAL
}
