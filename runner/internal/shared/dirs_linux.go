package shared

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// openDirNames are directories of the sandbox in which every user may leave files.
var openDirNames = []string{"/dev/shm", "/tmp", "/var/tmp", "/run/lock", "/dev/mqueue"}

// usualDirs returns the existing directories of openDirNames, resolved. No tenant can change the
// links to them.
func usualDirs() []string {
	var dirs []string
	for _, name := range openDirNames {
		if real, err := filepath.EvalSymlinks(name); err == nil && !slices.Contains(dirs, real) {
			dirs = append(dirs, real)
		}
	}
	return dirs
}

// findOpenDirs returns the usual directories and all other directories that anybody may write to,
// in the image of a container and its mounts. It leaves out mounts of the configuration (asked),
// which are shared on purpose.
func findOpenDirs(home string, asked []string) []string {
	dirs := usualDirs()
	var visit func(dir string, device uint64)
	visit = func(dir string, device uint64) {
		var st syscall.Stat_t
		if dir == home || slices.Contains(asked, dir) || syscall.Lstat(dir, &st) != nil {
			return
		}
		if st.Dev != device && !holdsFiles(dir) {
			return
		}
		if isWorldWritable(&st) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if entry.IsDir() {
				visit(filepath.Join(dir, entry.Name()), st.Dev)
			}
		}
	}
	var root syscall.Stat_t
	if syscall.Stat("/", &root) == nil {
		visit("/", root.Dev)
	}
	return dirs
}

const readOnly = 1

// holdsFiles reports whether slots may leave files in a mounted file system. File systems that show
// the kernel's state have no blocks.
func holdsFiles(dir string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && st.Blocks > 0 && st.Flags&readOnly == 0
}

// isWorldWritable reports whether this is a directory that anybody may write to.
func isWorldWritable(st *syscall.Stat_t) bool {
	return st.Mode&syscall.S_IFMT == syscall.S_IFDIR && st.Mode&0o002 != 0
}
