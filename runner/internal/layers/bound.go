package layers

import "errors"

// ErrRefused is the error for an archive that holds anything that Pack does not write.
var ErrRefused = errors.New("the archive of the layer is refused")

// ErrTooLarge is the error for a layer beyond a Bound, or with so many directories or files with
// several names that they take too much memory.
var ErrTooLarge = errors.New("the layer is too large")

// Bound is the most that a layer may hold. Zero means no bound.
type Bound struct {
	Entries int   // names below the layer's directory
	Bytes   int64 // of data in files; holes do not count
}

// Size is what a layer holds: entries, and bytes of data in files. A file with several names counts
// its bytes once, and holes do not count.
type Size struct {
	Entries int
	Bytes   int64
}

func (b Bound) isBelow(s Size) bool {
	return b.Entries > 0 && s.Entries > b.Entries || b.Bytes > 0 && s.Bytes > b.Bytes
}

// Limits are the limits of an archive.
type Limits struct {
	Bound
	// Directories are paths in the layer at which nothing but directories may be, such as those of
	// mount points: a link there would lead a mount elsewhere.
	Directories []string
}

// Skipped is what an archive lacks.
type Skipped struct {
	Count   int
	Entries []string // path and reason of the first maxSkipped
}

const (
	maxSkipped = 100
	// maxPath bounds the paths in errors.
	maxPath = 1000
)

func (s *Skipped) add(path, reason string) {
	if s.Count++; s.Count <= maxSkipped {
		s.Entries = append(s.Entries, shorten(path)+": "+reason)
	}
}

// shorten bounds a path in a message.
func shorten(path string) string {
	if len(path) > maxPath {
		path = path[:maxPath/2] + "…" + path[len(path)-maxPath/2:]
	}
	return path
}
