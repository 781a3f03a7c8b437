package pipe

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

const mfdCloexec = 1

// FDPath returns the path of a descriptor of the process that opens it.
func FDPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// MemoryFile creates a file without a name. A process of another uid can open it again through its
// descriptor, which is not possible with a pipe.
func MemoryFile(name, content string) (*os.File, error) {
	label, err := syscall.BytePtrFromString(name)
	if err != nil {
		return nil, err
	}
	fd, _, errno := syscall.Syscall(sysMemfdCreate, uintptr(unsafe.Pointer(label)), mfdCloexec, 0)
	var file *os.File
	if errno == 0 {
		file = os.NewFile(fd, name)
	} else if file, err = createUnlinked(name); err != nil {
		return nil, err
	}
	if _, err := file.WriteString(content); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}
