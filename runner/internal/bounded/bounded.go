package bounded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Sizes for callers, in bytes.
const (
	SettingSize = 64 << 10 // a setting of the kernel, or a small file of the runner
	TableSize   = 16 << 20 // a table with a line for each user, mount or object
)

// ErrTooLarge is wrapped by errors about files above the allowed size.
var ErrTooLarge = errors.New("is too large")

// Read reads at most most bytes of r. whole reports whether this was everything.
func Read(r io.Reader, most int) (data []byte, whole bool, err error) {
	data = make([]byte, 0, min(most+1, 4<<10))
	for {
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case len(data) > most:
			return data[:most], false, nil
		case err == io.EOF:
			return data, true, nil
		case err != nil:
			return data, false, err
		case len(data) == cap(data):
			grown := make([]byte, len(data), min(most+1, 2*cap(data)))
			copy(grown, data)
			data = grown
		}
	}
}

// Open opens a regular file for reading. It refuses anything else, before and after the opening,
// because a FIFO would block its reader.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	irregular := &fs.PathError{Op: "read", Path: path, Err: errors.New("is not a regular file")}
	if !info.Mode().IsRegular() {
		return nil, irregular
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err == nil && !info.Mode().IsRegular() {
		err = irregular
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ReadFile is Read for the regular file at path.
func ReadFile(path string, most int) (data []byte, whole bool, err error) {
	file, err := Open(path)
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	return Read(file, most)
}

// ReadWhole returns all of a regular file. A file of more than most bytes is an error.
func ReadWhole(path string, most int) ([]byte, error) {
	data, whole, err := ReadFile(path, most)
	if err == nil && !whole {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// EachName reads the directory at path in parts, since it may be huge, until do returns false.
func EachName(path string, do func(name string) (more bool)) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if !do(name) {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Count counts the entries of a directory and stops at most.
func Count(path string, most int) (n int, err error) {
	err = EachName(path, func(string) bool { n++; return n < most })
	return n, err
}
