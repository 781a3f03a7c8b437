package layers

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"hermes-exec/runner/internal/openat"
)

const (
	seekData = 3
	seekHole = 4
	fiClone  = 0x40049409 // FICLONE
	// chunkSize is how much is copied between two checks of the context.
	chunkSize = 16 << 20
)

// clone lets out, a new file, share the data of in.
func clone(out, in int) error {
	return openat.Result(syscall.Syscall(syscall.SYS_IOCTL, uintptr(out), fiClone, uintptr(in)))
}

// nextData returns the first part of a file at or after from that is no hole. It is empty if only
// a hole is left.
func nextData(fd int, from, size int64) (begin, end int64, err error) {
	begin, err = syscall.Seek(fd, from, seekData)
	if errors.Is(err, syscall.ENXIO) || err == nil && begin >= size {
		return size, size, nil
	}
	if errors.Is(err, syscall.EINVAL) { // a file system without holes
		return from, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if end, err = syscall.Seek(fd, begin, seekHole); err != nil {
		return 0, 0, err
	}
	return begin, min(end, size), nil
}

// data copies a part of a file to the same place in another. If the file has become shorter, the
// rest stays a hole.
func (c *copier) data(out, in int, begin, end int64) error {
	for begin < end {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		n, err := c.chunk(out, in, begin, min(end-begin, chunkSize))
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return syscall.Ftruncate(out, end)
		}
		begin += n
	}
	return nil
}

func (c *copier) chunk(out, in int, at, size int64) (int64, error) {
	if !c.noRange {
		n, err := copyFileRange(out, in, at, size)
		switch err {
		case nil, syscall.EINTR, syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EFBIG:
			return n, err
		}
		c.noRange = true
	}
	if c.buffer == nil {
		c.buffer = make([]byte, 256<<10)
	}
	n, err := syscall.Pread(in, c.buffer[:min(size, int64(len(c.buffer)))], at)
	if err != nil {
		return 0, err
	}
	return int64(n), writeAt(out, c.buffer[:n], at)
}

// writeAt writes all of data.
func writeAt(fd int, data []byte, at int64) error {
	for len(data) > 0 {
		n, err := syscall.Pwrite(fd, data, at)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

func copyFileRange(out, in int, at, size int64) (int64, error) {
	number := uintptr(285) // arm64
	if runtime.GOARCH == "amd64" {
		number = 326
	}
	from, to := at, at
	n, err := openat.Count(syscall.Syscall6(number, uintptr(in), uintptr(unsafe.Pointer(&from)), uintptr(out),
		uintptr(unsafe.Pointer(&to)), uintptr(size), 0))
	return int64(n), err
}
