package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const keepSize = 1 // FALLOC_FL_KEEP_SIZE

// ContentWriter returns a writer for the contents of a new file.
func ContentWriter(file *os.File, replaces bool) io.Writer {
	if replaces {
		return &replacement{file: file}
	}
	return struct{ io.Writer }{file}
}

// replacement is a file that will replace another one. Its blocks are allocated as it is written.
// Otherwise ext4 allocates them at the rename and begins to write them out: 1 ms for a KiB and 26
// ms for 10 MiB, on a disk where this takes 0.07 and 3 ms.
//
// Not the obvious code: see docs/why-not-obvious.md ("Allocating blocks before a rename").
type replacement struct {
	file        *os.File
	end         int64
	unsupported bool
}

func (r *replacement) Write(data []byte) (int, error) {
	if !r.unsupported {
		r.unsupported = syscall.Fallocate(int(r.file.Fd()), keepSize, r.end, int64(len(data))) != nil
	}
	n, err := r.file.Write(data)
	r.end += int64(n)
	return n, err
}

// Reserve checks that the disk has room for the first size bytes of an existing file, without
// changing it. It returns nil if the file system cannot reserve space.
func Reserve(file *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := syscall.Fallocate(int(file.Fd()), keepSize, 0, size)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) && !errors.Is(err, syscall.EFBIG) {
		return nil
	}
	if before, statErr := file.Stat(); statErr == nil {
		_ = file.Truncate(before.Size()) // frees blocks that were allocated beyond the end
	}
	return &fs.PathError{Op: "fallocate", Path: file.Name(), Err: err}
}
