package private

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

const readOnly = 1 // ST_RDONLY

// Hide keeps tenants from a directory of the engine. It does nothing if the engine has hidden the
// directory by a read-only file system. Otherwise it mounts an empty file system over the
// directory, or, if it may not, closes the directory to all other users, which does not keep out
// other processes of root.
func Hide(dir string) error {
	file, err := os.OpenFile(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(file.Fd()), &fs); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if fs.Flags&readOnly != 0 {
		return nil
	}
	flags := uintptr(syscall.MS_RDONLY | syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC)
	if syscall.Mount("tmpfs", dir, "tmpfs", flags, "size=0") == nil {
		return nil
	}
	if err := file.Chown(os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	return file.Chmod(0o700)
}
