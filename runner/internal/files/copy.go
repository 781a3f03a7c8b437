package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/node"
	"hermes-exec/runner/internal/reach"
	"hermes-exec/runner/internal/search"
)

func copyPath(r *request) (any, error) {
	var p struct {
		Source    ipc.Bytes `json:"source"`
		Target    ipc.Bytes `json:"target"`
		Recursive bool      `json:"recursive"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	source, target, err := r.resolvePair(p.Source, p.Target)
	if err != nil {
		return nil, err
	}
	c := newCopier(r.ctx, r.env.spareDir(), false)
	if p.Recursive {
		err = c.copy(source, target)
	} else {
		err = c.copyFile(source, target)
	}
	if err != nil {
		return nil, err
	}
	return map[string]any{"files": c.files, "bytes": c.bytes, "skipped": c.skipped}, nil
}

// maxSkipped bounds the list of names in a result.
const maxSkipped = 1000

// copier copies trees. It keeps modes, times, symbolic and hard links; it skips devices, FIFOs and
// sockets and lists them.
type copier struct {
	ctx      context.Context
	spareDir string // spareDir of replace
	keepAll  bool   // for a move: owner and special mode bits too
	root     node.ID
	links    *node.Links
	files    int
	bytes    int64
	skipped  []string
}

func newCopier(ctx context.Context, spare string, keepAll bool) *copier {
	return &copier{ctx: ctx, spareDir: spare, keepAll: keepAll, links: node.NewLinks(), skipped: []string{}}
}

// copyFile copies one regular file, through links at both ends.
func (c *copier) copyFile(source, target string) error {
	in, info, err := openRegular(source)
	if err != nil {
		return convert(source, err)
	}
	defer in.Close()
	if target, err = followLinks(target); err != nil {
		return convert(target, err)
	}
	return c.file(in, info, target)
}

func (c *copier) copy(source, target string) error {
	info, err := os.Lstat(source)
	if err != nil {
		return convert(source, err)
	}
	if info.IsDir() && strings.HasPrefix(target+"/", source+"/") {
		return &ipc.Error{Kind: "os", Errno: "EINVAL", Path: ipc.Bytes(target),
			Message: fmt.Sprintf("%s: cannot be copied into itself", source)}
	}
	return c.entry(source, target, info)
}

func (c *copier) entry(source, target string, info fs.FileInfo) error {
	if err := search.CheckCanceled(c.ctx); err != nil {
		return err
	}
	if c.root != (node.ID{}) && node.IDOf(info) == c.root {
		return nil // the target lies inside the source under another name
	}
	if !info.IsDir() && node.LinkCount(info) > 1 {
		if first, ok := c.links.First(info); ok && os.Link(first, target) == nil {
			c.files++
			return nil
		}
		defer func() { c.links.Add(info, target) }()
	}
	switch info.Mode().Type() {
	case 0:
		in, opened, err := openRegular(source)
		if err != nil {
			return convert(source, err)
		}
		defer in.Close()
		return c.file(in, opened, target)
	case fs.ModeDir:
		return c.directory(source, target, info)
	case fs.ModeSymlink:
		return c.link(source, target, info)
	}
	if len(c.skipped) < maxSkipped {
		c.skipped = append(c.skipped, fmt.Sprintf("%s: is a %s", source, node.TypeName(info.Mode())))
	}
	return nil
}

func (c *copier) file(in *os.File, info fs.FileInfo, target string) error {
	old, err := os.Lstat(target)
	switch {
	case err == nil && os.SameFile(old, info):
		return &ipc.Error{Kind: "os", Errno: "EINVAL", Path: ipc.Bytes(target), Message: target +
			": source and target are the same file"}
	case err == nil && old.Mode()&fs.ModeSymlink != 0:
		if err = os.Remove(target); err == nil {
			old = nil
		}
	case err == nil:
		err = requireRegular(target, old)
	case errors.Is(err, fs.ErrNotExist):
		old, err = nil, nil
	}
	if err != nil {
		return convert(target, err)
	}
	mode := node.Mode(info)
	if !c.keepAll {
		mode &= 0o1777
	}
	n, err := replace(target, old, &mode, source{search.WithContext(c.ctx, in), in, c.ctx}, c.spareDir)
	if err != nil {
		return convert(target, err)
	}
	c.files++
	c.bytes += n
	c.keepOwner(target, info)
	if c.keepAll {
		_ = syscall.Chmod(target, mode)
	}
	_ = os.Chtimes(target, info.ModTime(), info.ModTime())
	return nil
}

// source is a file whose contents are copied until ctx ends.
type source struct {
	io.Reader
	file *os.File
	ctx  context.Context
}

func (c *copier) directory(source, target string, info fs.FileInfo) error {
	if err := os.Mkdir(target, 0o700); err != nil {
		old, statErr := os.Lstat(target)
		if statErr != nil || !old.IsDir() {
			return convert(target, err)
		}
	}
	if c.root == (node.ID{}) {
		created, err := os.Lstat(target)
		if err != nil {
			return convert(target, err)
		}
		c.root = node.IDOf(created)
	}
	dir, err := reach.Open(source, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return convert(source, err)
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			child, statErr := os.Lstat(source + "/" + name)
			if errors.Is(statErr, fs.ErrNotExist) {
				continue
			}
			if statErr != nil {
				return convert(source+"/"+name, statErr)
			}
			if err := c.entry(source+"/"+name, target+"/"+name, child); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return convert(source, err)
		}
	}
	mode := node.Mode(info)
	if !c.keepAll {
		mode &= 0o1777
	}
	c.keepOwner(target, info)
	_ = os.Chtimes(target, info.ModTime(), info.ModTime())
	return convert(target, syscall.Chmod(target, mode))
}

func (c *copier) link(source, target string, info fs.FileInfo) error {
	to, err := os.Readlink(source)
	if err != nil {
		return convert(source, err)
	}
	err = os.Symlink(to, target)
	if isErrno(err, syscall.EEXIST) {
		if old, statErr := os.Lstat(target); statErr == nil && !old.IsDir() {
			if err = os.Remove(target); err == nil {
				err = os.Symlink(to, target)
			}
		}
	}
	if err != nil {
		return convert(target, err)
	}
	c.files++
	c.keepOwner(target, info)
	return nil
}

// keepOwner restores the owner after a move by root. Files that an ordinary user moves belong to
// that user anyway.
func (c *copier) keepOwner(target string, info fs.FileInfo) {
	if c.keepAll {
		uid, gid := node.Owner(info)
		_ = os.Lchown(target, uid, gid)
	}
}
