package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/reach"
	"hermes-exec/runner/internal/search"
)

type packResult struct {
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped"`
}

// packer sends a folder as a tar stream. Files may change, vanish or grow
// while it reads: the stream stays well-formed and the answer tells of it.
type packer struct {
	ctx    context.Context
	root   *os.Root
	out    *tar.Writer
	linked *links
	held   int // bytes of names of folders that are to come
	result packResult
	buffer []byte
}

func getTree(r *request) (any, error) {
	var p struct {
		Path ipc.Bytes `json:"path"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	if r.out == nil {
		return nil, badRequest("file.get_tree needs a data stream")
	}
	full, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(full)
	if err != nil {
		return nil, convert(full, err)
	}
	dir := full
	if !info.IsDir() {
		if err := needRegular(full, info); err != nil {
			return nil, err
		}
		if full, err = filepath.EvalSymlinks(full); err != nil {
			return nil, convert(full, err)
		}
		dir = filepath.Dir(full)
	}
	root, err := reach.OpenRoot(dir)
	if err != nil {
		return nil, convert(dir, err)
	}
	defer root.Close()
	k := &packer{ctx: r.ctx, root: root, out: tar.NewWriter(onlyWriter{r.out}), linked: newLinks(),
		buffer: make([]byte, 128<<10),
		result: packResult{Skipped: []string{}}}
	if info.IsDir() {
		err = k.folder(".")
	} else {
		err = k.entry(filepath.Base(full))
	}
	if err == nil {
		err = k.out.Close()
	}
	if err != nil {
		return nil, convert(dir, err)
	}
	return k.result, nil
}

func (k *packer) skip(name string, why any) {
	if len(k.result.Skipped) < maxReported {
		k.result.Skipped = append(k.result.Skipped, fmt.Sprintf("%s: %v", name, why))
	}
}

// skipError notes what the file system refused. Only the stream's own failure ends the transfer.
func (k *packer) skipError(name string, err error) {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		k.skip(name, errno.Error())
		return
	}
	k.skip(name, err)
}

// folder sends what is in the folder, in chunks, so that a huge one needs no
// more memory than a small one; its subfolders come after its files.
func (k *packer) folder(name string) error {
	dir, err := k.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err == nil {
		err = reach.Check(dir)
	}
	if err != nil {
		k.skipError(name, err)
		return nil
	}
	var folders []string
	before := k.held
	defer func() { k.held = before }()
	for {
		names, readErr := dir.Readdirnames(10_000)
		slices.Sort(names)
		for _, base := range names {
			if err := search.Canceled(k.ctx); err != nil {
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
				if k.held += len(base) + nameSize; k.held > maxHeld {
					k.skip(child, "there are too many folders")
					continue
				}
				folders = append(folders, base)
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
	for _, base := range folders {
		child := path.Join(name, base)
		// What no tree is made of again; and each step down is walked from the top.
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
	h := &tar.Header{Name: name, Mode: int64(unixMode(info) & 0o1777), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := k.out.WriteHeader(h); err != nil {
			return err
		}
		return k.folder(name)
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
		if first, ok := k.linked.names[versionOf(info)]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			k.result.Files++
			return k.out.WriteHeader(h)
		}
		return k.file(h, name, info)
	}
	k.skip(name, "is a "+typeName(info.Mode()))
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
	h.Typeflag, h.Mode, h.Size, h.ModTime = tar.TypeReg, int64(unixMode(info)&0o777), info.Size(), info.ModTime()
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
	if linkCount(info) > 1 {
		k.linked.add(info, name)
	}
	k.result.Files++
	k.result.Bytes += n
	return nil
}

// contents sends exactly size bytes: no more of a file that grows, zeros for
// what a shrinking or failing one no longer has.
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
