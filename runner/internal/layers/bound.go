package layers

import (
	"errors"
	"os"
)

// ErrRefused is the error for an archive that holds anything that Pack does not write.
var ErrRefused = errors.New("the archive of the layer is refused")

// ErrTooLarge is the error for a layer beyond a Bound.
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

// Plus returns the sum of two sizes.
func (s Size) Plus(more Size) Size { return Size{s.Entries + more.Entries, s.Bytes + more.Bytes} }

// Limits are the limits of an archive.
type Limits struct {
	Bound
	// Directories are paths in the layer at which nothing but directories may be, such as those of
	// mount points: a link there would lead a mount elsewhere.
	Directories []string
	// Owned: the archive is of a copy of a slot's directories. Its files get the user of the runner as
	// their owner.
	Owned bool
	// Take is called before data of a file are written, with their bytes. Its error ends the unpacking.
	Take func(bytes int64) error
}

// Skipped is what an archive or a copy lacks.
type Skipped struct {
	Count   int
	Entries []string // path and reason of the first 100
}

// Owner is a user with its group.
type Owner struct{ UID, GID int }

// RunnerOwner returns the user of the runner.
func RunnerOwner() Owner { return Owner{UID: os.Geteuid(), GID: os.Getegid()} }

// Owners is what becomes of the owners of entries in a copy.
type Owners struct {
	From, To Owner // entries of the user From belong to the user To
	// Others: entries of other users are copied with their owners, as root could make them. Otherwise
	// they are left out, because the user From could not read or make them, and other groups become To's.
	Others bool
}
