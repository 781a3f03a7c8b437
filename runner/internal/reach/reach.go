package reach

import (
	"os"
	"strings"
	"sync/atomic"
)

// runnerPID is the pid of the serving runner.
var runnerPID atomic.Int64

// HideRunner hides the /proc files of the process pid; the files of this process are always hidden.
func HideRunner(pid int) { runnerPID.Store(int64(pid)) }

// Open opens a path of a tenant with the rights of the calling thread. A refused file was not read.
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

// CheckParent refuses a path whose directory may not be reached.
func CheckParent(path string) error {
	path = strings.TrimRight(path, "/")
	dir := path[:strings.LastIndexByte(path, '/')+1]
	if dir == "" || dir == "/" {
		return nil
	}
	return checkDir(dir, path)
}
