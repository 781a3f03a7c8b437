package reach

import (
	"os"
	"syscall"
)

func open(path string, flags int, perm uint32) (int, error) {
	return syscall.Open(path, flags|syscall.O_CLOEXEC, perm)
}

// Check refuses nothing: this system has no /proc.
func Check(*os.File) error { return nil }

func checkDir(dir, path string) error { return nil }
