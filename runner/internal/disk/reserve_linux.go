package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const keepSize = 1 // FALLOC_FL_KEEP_SIZE

// ContentWriter is where the contents of a new file are written to.
func ContentWriter(file *os.File, replaces bool) io.Writer {
	if replaces {
		return &replacement{file: file}
	}
	return struct{ io.Writer }{file}
}

// replacement is a file that is to take the place of another one. Its blocks
// are allocated as it is written: ext4 allocates the missing ones when the file
// is renamed, and begins to write them out (1 ms for a KiB, 26 for 10 MiB, on a
// disk where this takes 0.07 and 3).
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

// Reserve makes sure that the disk has room for the first size bytes of an
// existing file, without changing it. Where the file system cannot tell it
// returns nil.
func Reserve(file *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := syscall.Fallocate(int(file.Fd()), keepSize, 0, size)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) && !errors.Is(err, syscall.EFBIG) {
		return nil
	}
	if before, statErr := file.Stat(); statErr == nil {
		_ = file.Truncate(before.Size()) // gives back what it has got beyond the end
	}
	return &fs.PathError{Op: "fallocate", Path: file.Name(), Err: err}
}
