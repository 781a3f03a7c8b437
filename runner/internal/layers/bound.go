package layers

import "errors"

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
