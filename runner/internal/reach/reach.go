package reach

import (
	"os"
	"strings"
	"sync/atomic"
)

// runner is the process that serves, beside this one.
var runnerPID atomic.Int64

// HideRunner makes a process unreachable as this one is.
func HideRunner(pid int) { runnerPID.Store(int64(pid)) }

// Open opens a path of a tenant with the rights of the calling thread. What is
// refused was not read.
func Open(path string, flags int, perm uint32) (*os.File, error) {
	fd, err := open(path, flags, perm)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	if err := Check(file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// OpenRoot is os.OpenRoot for a directory of a tenant.
func OpenRoot(path string) (*os.Root, error) {
	if err := CheckParent(path); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	self, err := root.Open(".")
	if err == nil {
		err = Check(self)
		self.Close()
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// CheckParent refuses a path whose directory is not to be reached.
func CheckParent(path string) error {
	path = strings.TrimRight(path, "/")
	dir := path[:strings.LastIndexByte(path, '/')+1]
	if dir == "" || dir == "/" {
		return nil
	}
	return checkDir(dir, path)
}
