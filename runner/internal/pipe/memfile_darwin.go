package pipe

import (
	"fmt"
	"os"
)

// FDPath returns the path of a descriptor of the process that opens it.
func FDPath(fd int) string { return fmt.Sprintf("/dev/fd/%d", fd) }

// MemoryFile creates a file without a name.
func MemoryFile(name, content string) (*os.File, error) {
	file, err := createUnlinked(name)
	if err != nil {
		return nil, err
	}
	// Opening /dev/fd shares the offset on this system.
	if _, err = file.WriteString(content); err == nil {
		_, err = file.Seek(0, 0)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}
