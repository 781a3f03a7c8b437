package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/node"
	"hermes-exec/runner/internal/pipe"
	"hermes-exec/runner/internal/reach"
	"hermes-exec/runner/internal/search"
)

// PackResult lists the sent and the skipped files.
type PackResult struct {
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped"`
}

const (
	// maxNameBytes bounds the names held at once while directories are read.
	maxNameBytes = 32 << 20
	nameSize     = 24 // of a name besides its bytes
)

// packer sends a directory as a tar stream. Files may change, vanish or grow while they are read:
// the stream stays well-formed, and the result lists the differences.
type packer struct {
	ctx       context.Context
	root      *os.Root
	out       *tar.Writer
	links     *node.Links
	nameBytes int // bytes of names of directories that are still to be read
	result    PackResult
	buffer    []byte
}

// Pack sends the directory dir as a tar stream, or only its file name if name is not empty.
func Pack(ctx context.Context, dir *os.Root, name string, out io.Writer) (PackResult, error) {
	k := &packer{ctx: ctx, root: dir, out: tar.NewWriter(pipe.OnlyWriter{Writer: out}), links: node.NewLinks(),
		buffer: make([]byte, 128<<10), result: PackResult{Skipped: []string{}}}
	var err error
	if name == "" {
		err = k.directory(".")
	} else {
		err = k.entry(name)
	}
	if err == nil {
		err = k.out.Close()
	}
	return k.result, err
}

func (k *packer) skip(name string, why any) {
	if len(k.result.Skipped) < maxReported {
		k.result.Skipped = append(k.result.Skipped, fmt.Sprintf("%s: %v", name, why))
	}
}

// skipError records a refusal of the file system. Only a failure of the stream itself ends the
// transfer.
func (k *packer) skipError(name string, err error) {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		k.skip(name, errno.Error())
		return
	}
	k.skip(name, err)
}

// directory sends the contents of a directory in chunks, so that a huge directory needs no more
// memory than a small one. Subdirectories come after the files.
func (k *packer) directory(name string) error {
	dir, err := k.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err == nil {
		err = reach.Check(dir)
	}
	if err != nil {
		k.skipError(name, err)
		return nil
	}
	var directories []string
	before := k.nameBytes
	defer func() { k.nameBytes = before }()
	for {
		names, readErr := dir.Readdirnames(10_000)
		slices.Sort(names)
		for _, base := range names {
			if err := search.CheckCanceled(k.ctx); err != nil {
				dir.Close()
				return err
			}
			child := path.Join(name, base)
			info, err := k.root.Lstat(child)
			if err != nil {
				k.skipError(child, err)
				continue
			}
			if info.IsDir() {
				if k.nameBytes += len(base) + nameSize; k.nameBytes > maxNameBytes {
					k.skip(child, "there are too many directories")
					continue
				}
				directories = append(directories, base)
				continue
			}
			if err := k.send(child, info); err != nil {
				dir.Close()
				return err
			}
		}
		if readErr != nil {
			if readErr != io.EOF {
				k.skipError(name, readErr)
			}
			break
		}
	}
	dir.Close()
	for _, base := range directories {
		child := path.Join(name, base)
		// Unpack refuses deeper trees, and each step down walks from the top.
		if strings.Count(child, "/") >= maxDepth {
			k.skip(child, "is nested too deeply")
			continue
		}
		if err := k.entry(child); err != nil {
			return err
		}
	}
	return nil
}

func (k *packer) entry(name string) error {
	info, err := k.root.Lstat(name)
	if err != nil {
		k.skipError(name, err)
		return nil
	}
	return k.send(name, info)
}

func (k *packer) send(name string, info fs.FileInfo) error {
	h := &tar.Header{Name: name, Mode: int64(node.Mode(info) & 0o1777), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := k.out.WriteHeader(h); err != nil {
			return err
		}
		return k.directory(name)
	case fs.ModeSymlink:
		target, err := k.root.Readlink(name)
		if err != nil {
			k.skipError(name, err)
			return nil
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		k.result.Files++
		return k.out.WriteHeader(h)
	case 0:
		if first, ok := k.links.First(info); ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			k.result.Files++
			return k.out.WriteHeader(h)
		}
		return k.file(h, name, info)
	}
	k.skip(name, "is a "+node.TypeName(info.Mode()))
	return nil
}

func (k *packer) file(h *tar.Header, name string, seen fs.FileInfo) error {
	in, err := k.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		k.skipError(name, err)
		return nil
	}
	defer in.Close()
	if err := reach.Check(in); err != nil {
		k.skipError(name, err)
		return nil
	}
	info, err := in.Stat()
	if err != nil || !os.SameFile(seen, info) {
		k.skip(name, "was replaced while it was read")
		return nil
	}
	h.Typeflag, h.Mode, h.Size, h.ModTime = tar.TypeReg, int64(node.Mode(info)&0o777), info.Size(), info.ModTime()
	if err := k.out.WriteHeader(h); err != nil {
		return err
	}
	n, err := k.contents(in, h.Size)
	if err != nil {
		return err
	}
	if n < h.Size {
		k.skip(name, fmt.Sprintf("became shorter while it was read: %d of %d bytes, the rest is zeros", n, h.Size))
	}
	if node.LinkCount(info) > 1 {
		k.links.Add(info, name)
	}
	k.result.Files++
	k.result.Bytes += n
	return nil
}

// contents sends exactly size bytes. It stops there if the file grows, and pads with zeros if the
// file shrinks or fails.
func (k *packer) contents(in io.Reader, size int64) (read int64, err error) {
	for read < size {
		n, readErr := in.Read(k.buffer[:min(int64(len(k.buffer)), size-read)])
		if n > 0 {
			if _, err := k.out.Write(k.buffer[:n]); err != nil {
				return read, err
			}
			read += int64(n)
		}
		if readErr != nil {
			break
		}
	}
	if read < size {
		clear(k.buffer)
	}
	for left := size - read; left > 0; {
		n, err := k.out.Write(k.buffer[:min(int64(len(k.buffer)), left)])
		if err != nil {
			return read, err
		}
		left -= int64(n)
	}
	return read, nil
}
