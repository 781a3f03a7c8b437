//go:build !linux

package program

import (
	"errors"
	"os"
	"strings"
	"syscall"
)

// CheckDirectory checks that the thread may enter a working directory.
func CheckDirectory(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return syscall.ENOTDIR
	}
	return syscall.Access(dir, 1)
}

// Lookup finds a program as a shell would.
func Lookup(name, cwd string, env []string) (string, syscall.Errno) {
	usable := func(path string) syscall.Errno {
		at := path
		if !strings.HasPrefix(at, "/") {
			at = cwd + "/" + at
		}
		st, err := os.Stat(at)
		if err != nil {
			errno := errnoOf(err)
			return errno
		}
		if !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
			return syscall.EACCES
		}
		return 0
	}
	if strings.Contains(name, "/") {
		return name, usable(name)
	}
	for _, e := range env {
		if list, ok := strings.CutPrefix(e, "PATH="); ok {
			for _, dir := range strings.Split(list, ":") {
				if usable(dir+"/"+name) == 0 {
					return dir + "/" + name, 0
				}
			}
		}
	}
	return "", syscall.ENOENT
}

// errno of an error of the system.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return syscall.EINVAL
}
