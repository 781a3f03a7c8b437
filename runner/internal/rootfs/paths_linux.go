package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// HostPaths are the paths of a host that programs need: the same ones that a private view shows,
// and the tables of the kernel and of name resolution.
func HostPaths() []string {
	return append(slices.Clone(systemPaths), "/etc", "/proc", "/sys", "/run/systemd/resolve",
		"/var/lib/ca-certificates")
}

// Devices are the devices that every slot has, and its terminals.
func Devices() []string {
	paths := []string{"/dev/ptmx", "/dev/pts", "/proc"}
	for _, name := range deviceNames {
		paths = append(paths, "/dev/"+name)
	}
	return paths
}

// PathsExcept returns the paths of this file system that neither are nor contain one of the closed
// paths. Directories that contain one are replaced by their entries.
func PathsExcept(closed ...string) []string {
	var open []string
	var visit func(dir string)
	visit = func(dir string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			switch {
			case slices.Contains(closed, path):
			case slices.ContainsFunc(closed, func(c string) bool { return strings.HasPrefix(c, path+"/") }):
				visit(path)
			default:
				open = append(open, path)
			}
		}
	}
	visit("/")
	return open
}
