package leftover

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"hermes-exec/runner/internal/tree"
	"hermes-exec/runner/internal/wipe"
)

// Remove removes each directory with everything in it, however long that takes, and returns the
// problems. A directory on which something is mounted, such as a volume, is emptied only.
func Remove(dirs ...string) (problems []string) {
	for _, path := range dirs {
		dir, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		w := &wipe.Wiper{}
		err = tree.EachName(dir, func(name string) (removed, more bool) { return w.WipeIn(dir, name), true })
		if err != nil {
			problems = append(problems, err.Error())
		}
		dir.Close()
		problems = append(problems, w.Problems...)
		if err := os.Remove(path); err != nil && len(w.Problems) == 0 && !isMountPoint(err) {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// isMountPoint reports whether a directory could not be removed because something is mounted on it,
// perhaps in a read-only root.
func isMountPoint(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EROFS)
}
