package disk

import (
	"os"
	"syscall"
)

// RenameNoReplace renames unless target exists. The check and the rename are two steps on this
// system.
func RenameNoReplace(source, target string) error {
	if _, err := os.Lstat(target); err == nil {
		return syscall.EEXIST
	}
	return os.Rename(source, target)
}
