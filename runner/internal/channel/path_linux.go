package channel

import (
	"fmt"
	"path/filepath"
	"syscall"
)

// longestSocketPath leaves room below the 108 bytes of sockaddr_un.
const longestSocketPath = 100

// withShortPath calls use with a path to the same socket that fits into an address.
func withShortPath(path string, use func(short string) error) error {
	if len(path) <= longestSocketPath {
		return use(path)
	}
	const oPath = 0x200000
	dir, err := syscall.Open(filepath.Dir(path), oPath|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Dir(path), err)
	}
	defer syscall.Close(dir)
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
}
