package disk

import (
	"errors"
	"io"
	"os"
	"syscall"
)

const (
	seekData = 3
	seekHole = 4
)

// CopySparse copies in to the beginning of out, a new file, and keeps the holes of in. each wraps
// the reader of every part. If in has no holes, it does nothing and returns false.
func CopySparse(out, in *os.File, each func(io.Reader) io.Reader) (size int64, sparse bool, err error) {
	info, err := in.Stat()
	if err != nil {
		return 0, true, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if size = info.Size(); !ok || st.Blocks*512 >= size {
		return 0, false, nil
	}
	for end := int64(0); end < size; {
		begin, err := in.Seek(end, seekData)
		switch {
		case errors.Is(err, syscall.ENXIO):
			return size, true, out.Truncate(size) // only a hole is left
		case err != nil && end == 0:
			return 0, false, nil // the file system has no holes
		case err != nil:
			return 0, true, err
		}
		if end, err = in.Seek(begin, seekHole); err != nil {
			return 0, true, err
		}
		if _, err := in.Seek(begin, io.SeekStart); err != nil {
			return 0, true, err
		}
		if _, err := out.Seek(begin, io.SeekStart); err != nil {
			return 0, true, err
		}
		part := struct{ io.Reader }{io.LimitReader(each(in), end-begin)}
		if _, err := io.CopyBuffer(struct{ io.Writer }{out}, part, make([]byte, 64<<10)); err != nil {
			return 0, true, err
		}
	}
	return size, true, out.Truncate(size)
}
