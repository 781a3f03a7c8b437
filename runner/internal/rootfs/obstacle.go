package rootfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// FindObstacle returns an entry that is in the way of a read-only path of a view, and this path, if the
// slot has directories with such contents: dirs maps their paths in the slot to them. On the way to a
// mount point there must be only directories, because View.Enter would follow a link of a tenant there,
// before it enters the slot's root.
func FindObstacle(readOnly []string, dirs map[string]string) (at, path string) {
	for _, path := range readOnly {
		path = filepath.Clean(path)
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // View.Enter reports it
		}
		last := fs.ModeDir
		if st, err := os.Stat(real); err == nil {
			last = st.Mode().Type()
		}
		if at := findObstacle(dirs, real, last); at != "" {
			return at, path
		}
		if real == path { // otherwise there is a link too, if nothing else is there
			continue
		}
		if at := findObstacle(dirs, filepath.Dir(path), fs.ModeDir); at != "" {
			return at, path
		}
	}
	return "", ""
}

// findObstacle returns the first entry on the way to a path that is no directory, or at its end is not
// of the type last; "" if there is none.
func findObstacle(dirs map[string]string, path string, last fs.FileMode) string {
	for inside, dir := range dirs {
		rest, isBelow := strings.CutPrefix(path, inside+"/")
		if !isBelow {
			continue
		}
		names := strings.Split(rest, "/")
		for i := range names {
			below := filepath.Join(names[:i+1]...)
			wanted := fs.ModeDir
			if i == len(names)-1 {
				wanted = last
			}
			st, err := os.Lstat(filepath.Join(dir, below))
			if err != nil {
				break
			}
			if st.Mode().Type() != wanted {
				return filepath.Join(inside, below)
			}
		}
	}
	return ""
}
