package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/disk"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/node"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/reach"
	"hermes-exec/runner/internal/search"
)

type writeParams struct {
	Path    ipc.Bytes `json:"path"`
	Mode    *uint32   `json:"mode"`
	Parents bool      `json:"parents"`
	Append  bool      `json:"append"`
}

type writeResult struct {
	Written     int64 `json:"written"`
	Created     bool  `json:"created"`
	DirsCreated int   `json:"dirs_created"`
}

const (
	newFileMode = 0o644
	newDirMode  = 0o755
	maxLinks    = 40
)

func writeFile(r *request) (any, error) {
	var p writeParams
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	if err := checkMode(p.Mode); err != nil {
		return nil, err
	}
	path, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, "/") {
		return nil, convert(path, syscall.EISDIR)
	}
	target, err := followLinks(path)
	if err != nil {
		return nil, convert(path, err)
	}
	out := writeResult{}
	if p.Parents {
		if out.DirsCreated, err = makeParents(filepath.Dir(target)); err != nil {
			return nil, convert(path, err)
		}
	}
	old, err := os.Lstat(target)
	switch {
	case err == nil:
		err = requireRegular(path, old)
	case errors.Is(err, fs.ErrNotExist):
		old, out.Created, err = nil, true, nil
	}
	if err != nil {
		return nil, convert(path, err)
	}
	if p.Append {
		out.Written, err = appendTo(target, p.Mode, r.in)
	} else {
		out.Written, err = replace(target, old, p.Mode, r.in, r.env.spareDir())
	}
	if err != nil {
		return nil, convert(path, err)
	}
	return out, nil
}

func checkMode(mode *uint32) error {
	if mode != nil && *mode > 0o7777 {
		return badRequest("mode %#o is out of range", *mode)
	}
	return nil
}

// followLinks returns the path that a write to path changes: the end of a chain of symbolic links,
// which may not exist yet.
func followLinks(path string) (string, error) {
	for range maxLinks {
		target, err := os.Readlink(path)
		if err != nil {
			if isErrno(err, syscall.EINVAL, syscall.ENOENT) {
				return path, nil
			}
			return "", err
		}
		if !filepath.IsAbs(target) {
			// Not filepath.Join: it would remove a `..` after a link.
			target = path[:strings.LastIndexByte(path, '/')+1] + target
		}
		path = target
	}
	return "", syscall.ELOOP
}

// makeParents makes dir and its missing parents, and returns how many directories it made.
func makeParents(dir string) (int, error) {
	err := os.Mkdir(dir, newDirMode)
	switch {
	case err == nil:
		return 1, nil
	case isErrno(err, syscall.EEXIST):
		info, statErr := os.Stat(dir)
		if statErr != nil {
			return 0, statErr
		}
		if !info.IsDir() {
			return 0, syscall.ENOTDIR
		}
		return 0, nil
	case !isErrno(err, syscall.ENOENT) || filepath.Dir(dir) == dir:
		if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
			return 0, nil // a read-only file system refuses before it looks
		}
		return 0, err
	}
	count, err := makeParents(filepath.Dir(dir))
	if err != nil {
		return count, err
	}
	if err := os.Mkdir(dir, newDirMode); err != nil && !isErrno(err, syscall.EEXIST) {
		return count, err
	}
	return count + 1, nil
}

func appendTo(target string, mode *uint32, in io.Reader) (int64, error) {
	file, err := openForWriting(target, syscall.O_APPEND|syscall.O_CREAT)
	if err != nil {
		return 0, err
	}
	before, err := file.Stat()
	if err != nil {
		return 0, errors.Join(err, file.Close())
	}
	n, err := io.CopyBuffer(pipe.OnlyWriter{Writer: file}, pipe.OnlyReader{Reader: in}, make([]byte, 64<<10))
	if err != nil {
		undoAppend(file, before.Size(), n)
	} else if mode != nil {
		err = syscall.Fchmod(int(file.Fd()), *mode)
	}
	return n, errors.Join(err, file.Close())
}

// undoAppend removes the n bytes of an append that failed, unless another process has written to
// the file since.
func undoAppend(file *os.File, size, n int64) {
	if now, err := file.Stat(); err == nil && now.Size() == size+n {
		_ = file.Truncate(size)
	}
}

// openForWriting opens a regular file and never waits for a reader.
func openForWriting(path string, flags int) (*os.File, error) {
	flags |= syscall.O_WRONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_NOFOLLOW
	file, err := reach.Open(path, flags, newFileMode)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = requireRegular(path, info)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// replace gives target new contents at once, by a temporary file beside it and a rename. If the
// directory or the owner does not allow that, or the file has other names, it writes the whole
// contents in place. Contents that cannot be stored beside the file wait in the directory spareDir.
func replace(target string, old fs.FileInfo, mode *uint32, in io.Reader, spare string) (int64, error) {
	inPlace := false
	if old != nil {
		if err := checkWritable(target); err != nil {
			return 0, err
		}
		inPlace = node.LinkCount(old) > 1
	}
	temp, err := createTemp(filepath.Dir(target), old != nil || mode != nil)
	if old != nil && isErrno(err, syscall.EACCES, syscall.EPERM, syscall.EROFS) {
		inPlace = true
		if temp, err = createTemp(spare, true); err != nil {
			return rewrite(target, mode, in, 0) // there is no other directory, so write as the data comes
		}
	}
	if err != nil {
		return 0, err
	}
	n, err := writeContents(temp, old != nil, in)
	if err == nil {
		err = replaceTarget(temp, target, old, mode, inPlace)
	}
	err = errors.Join(err, temp.Close())
	if err != nil {
		_ = os.Remove(temp.Name())
	}
	return n, err
}

// writeContents writes the contents of a new file. It keeps the holes of a copied file: a tenant
// can make a file of a tebibyte with one call.
func writeContents(file *os.File, replaces bool, in io.Reader) (int64, error) {
	if from, ok := in.(source); ok {
		until := func(in io.Reader) io.Reader { return search.WithContext(from.ctx, in) }
		if n, sparse, err := disk.CopySparse(file, from.file, until); sparse {
			return n, err
		}
	}
	return io.CopyBuffer(disk.ContentWriter(file, replaces), pipe.OnlyReader{Reader: in}, make([]byte, 64<<10))
}

// checkWritable checks that the caller could write to the file itself: a rename alone would bypass
// a read-only mode. A program that runs passes, because it keeps its old contents.
func checkWritable(path string) error {
	file, err := openForWriting(path, 0)
	if err == nil {
		return file.Close()
	}
	if isErrno(err, syscall.ETXTBSY) {
		return nil
	}
	return err
}

// createTemp makes the file that will be renamed. With private its mode is set only when its
// contents are complete.
func createTemp(dir string, private bool) (*os.File, error) {
	mode := uint32(newFileMode)
	if private {
		mode = 0o600
	}
	for {
		path := filepath.Join(dir, node.NewTempName())
		fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL|syscall.O_CLOEXEC, mode)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if err != syscall.EEXIST && err != syscall.EINTR {
			return nil, err
		}
	}
}

// replaceTarget gives the finished temporary file the owner, mode and name of the old one. If the
// system refuses that, it writes the file in place.
func replaceTarget(temp *os.File, target string, old fs.FileInfo, mode *uint32, inPlace bool) error {
	if old != nil && !inPlace {
		uid, gid := node.Owner(old)
		tempInfo, err := temp.Stat()
		if err != nil {
			return err
		}
		if u, g := node.Owner(tempInfo); u != uid || g != gid {
			inPlace = temp.Chown(uid, gid) != nil
		}
	}
	if !inPlace {
		if err := setMode(temp, old, mode); err != nil {
			return err
		}
		err := os.Rename(temp.Name(), target)
		if err == nil || old == nil || !isErrno(err, syscall.EPERM, syscall.EACCES, syscall.EBUSY) {
			return err
		}
	}
	if _, err := temp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	whole, err := temp.Stat()
	if err == nil {
		_, err = rewrite(target, mode, temp, whole.Size())
	}
	return errors.Join(err, os.Remove(temp.Name()))
}

func setMode(temp *os.File, old fs.FileInfo, mode *uint32) error {
	switch {
	case mode != nil:
		return syscall.Fchmod(int(temp.Fd()), *mode)
	case old != nil:
		return syscall.Fchmod(int(temp.Fd()), node.Mode(old))
	}
	return nil
}

// rewrite writes new contents over the old contents of target. It changes nothing if the disk has
// no room for size bytes.
func rewrite(target string, mode *uint32, in io.Reader, size int64) (int64, error) {
	file, err := openForWriting(target, 0)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if err := disk.Reserve(file, size); err != nil {
		return 0, err
	}
	// The old end is cut last, so that a reader never sees an empty file.
	n, err := io.CopyBuffer(pipe.OnlyWriter{Writer: file}, pipe.OnlyReader{Reader: in}, make([]byte, 64<<10))
	if err != nil {
		return n, partialError(target, n, err)
	}
	if err := file.Truncate(n); err != nil {
		return n, err
	}
	if mode != nil {
		return n, syscall.Fchmod(int(file.Fd()), *mode)
	}
	return n, nil
}

// partialError returns the error for a file that was written in place and has only a part of the
// new contents.
func partialError(target string, n int64, err error) error {
	var errno syscall.Errno
	if n == 0 || !errors.As(err, &errno) {
		return err
	}
	return &ipc.Error{
		Kind: "os", Errno: ipc.ErrnoName(errno), Path: ipc.Bytes(target),
		Message: fmt.Sprintf("%s: %s; it is written in place, and its first %d bytes are new ones", target, errno, n),
	}
}
