package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/disk"
	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/node"
	"hermes-exec/runner/internal/pipe"
)

const (
	// maxReported bounds the list of names in a result.
	maxReported = 1000
	newDirMode  = 0o755
	maxDepth    = 512
)

// UnpackResult lists the written and the refused entries.
type UnpackResult struct {
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Refused []string `json:"refused"`
}

// unpacker writes a tar stream below one directory. Each step goes through a descriptor of the
// directory that holds the entry (os.Root), and each directory on the way must be a real one. No
// entry can pass a symbolic link, not even a link that somebody creates meanwhile.
type unpacker struct {
	root   *os.Root
	result UnpackResult
	// anyLink keeps symbolic links with any target. Entries never pass through them.
	anyLink bool
	// directories get their mode and time when everything in them is written.
	directories []directoryEntry

	lastName string
	last     *os.Root
}

type directoryEntry struct {
	name  string
	mode  uint32
	mtime time.Time
	// originalMode is the mode before unlock changed it.
	originalMode *uint32
}

// refusal is the reason why one entry was not written; the other entries are.
type refusal string

func (e refusal) Error() string { return string(e) }

// Unpack writes a tar stream below the directory dir. With anyLink it keeps symbolic links with any
// target.
func Unpack(dir *os.Root, in io.Reader, anyLink bool) (UnpackResult, error) {
	u := &unpacker{root: dir, anyLink: anyLink, result: UnpackResult{Refused: []string{}}}
	defer u.closeLast()
	if err := u.unpack(in); err != nil {
		u.lockDirectories()
		return u.result, err
	}
	u.finishDirectories()
	// The padding after the end marker belongs to the stream.
	_, err := io.Copy(io.Discard, pipe.OnlyReader{Reader: in})
	return u.result, err
}

func (u *unpacker) unpack(in io.Reader) error {
	archive := tar.NewReader(pipe.OnlyReader{Reader: in})
	for {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return archiveError(err)
		}
		err = u.entry(h, archive)
		var no refusal
		switch {
		case err == nil:
		case errors.As(err, &no):
			u.refuse(h.Name, no)
		default:
			return archiveError(err)
		}
	}
}

func archiveError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &ipc.Error{Kind: "bad_request", Message: fmt.Sprintf("incomplete or invalid tar stream: %v", err)}
	}
	return err
}

func (u *unpacker) refuse(name string, why refusal) {
	if len(u.result.Refused) < maxReported {
		u.result.Refused = append(u.result.Refused, fmt.Sprintf("%s: %s", name, string(why)))
	}
}

// entryName checks a name of the archive and returns it without empty and `.` parts.
func entryName(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return "", refusal("absolute name")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return "", refusal("name holds ..")
		case strings.ContainsRune(part, 0):
			return "", refusal("name holds a NUL byte")
		}
		parts = append(parts, part)
	}
	if len(parts) > maxDepth {
		return "", refusal("too many directories deep")
	}
	return strings.Join(parts, "/"), nil
}

func (u *unpacker) entry(h *tar.Header, data io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return refusal("empty name")
		}
		return nil // the destination itself keeps its mode
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(name, h)
	}
	parent, err := u.parent(path.Dir(name))
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont:
		return u.file(parent, path.Base(name), h, data)
	case tar.TypeSymlink:
		return u.symlink(parent, name, h.Linkname)
	case tar.TypeLink:
		return u.hardLink(parent, name, h.Linkname)
	case tar.TypeGNUSparse:
		return refusal("sparse file")
	case tar.TypeChar, tar.TypeBlock:
		return refusal("device")
	case tar.TypeFifo:
		return refusal("FIFO")
	}
	return refusal(fmt.Sprintf("entry of type %q", h.Typeflag))
}

func (u *unpacker) closeLast() {
	if u.last != nil {
		_ = u.last.Close()
		u.last = nil
	}
}

// parent opens the directory name and makes the missing part of its path.
func (u *unpacker) parent(name string) (*os.Root, error) {
	if name == "." {
		return u.root, nil
	}
	if u.last != nil && u.lastName == name {
		return u.last, nil
	}
	here := u.root
	for part := range strings.SplitSeq(name, "/") {
		next, err := realDirectory(here, part)
		if here != u.root {
			_ = here.Close()
		}
		if err != nil {
			return nil, err
		}
		here = next
	}
	u.closeLast()
	u.last, u.lastName = here, name
	return here, nil
}

// realDirectory opens the directory part of dir, and makes it if it is missing. A symbolic link is
// refused, even if it replaces the directory between the check and the opening.
func realDirectory(dir *os.Root, part string) (*os.Root, error) {
	info, err := dir.Lstat(part)
	if errors.Is(err, fs.ErrNotExist) {
		if err = dir.Mkdir(part, newDirMode); err == nil || errors.Is(err, fs.ErrExist) {
			info, err = dir.Lstat(part)
		}
	}
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil, refusal("leads through the symbolic link " + part)
	}
	if !info.IsDir() {
		return nil, refusal(part + " is no directory")
	}
	return openSame(dir, part, info)
}

// openSame opens the directory part of dir, which must be the same directory as in the caller's
// Lstat.
func openSame(dir *os.Root, part string, want fs.FileInfo) (*os.Root, error) {
	next, err := dir.OpenRoot(part)
	if err != nil {
		return nil, err
	}
	opened, err := next.Stat(".")
	if err == nil && !os.SameFile(want, opened) {
		err = refusal(part + " was replaced meanwhile")
	}
	if err != nil {
		_ = next.Close()
		return nil, err
	}
	return next, nil
}

func (u *unpacker) directory(name string, h *tar.Header) error {
	dir, err := u.parent(name)
	if err != nil {
		return err
	}
	f := directoryEntry{name: name, mode: uint32(h.Mode) & 0o1777, mtime: h.ModTime}
	if f.originalMode, err = unlock(dir); err != nil {
		return err
	}
	u.directories = append(u.directories, f)
	return nil
}

// unlock gives the owner of an existing directory all rights until the directory gets the archive's
// mode, so that its entries can be replaced. It returns the mode that it changed. A directory of
// another user stays as it is.
func unlock(dir *os.Root) (locked *uint32, err error) {
	info, err := dir.Stat(".")
	if err != nil {
		return nil, err
	}
	mode := node.Mode(info)
	if mode&0o700 == 0o700 || setDirectoryMode(dir, mode|0o700) != nil {
		return nil, nil
	}
	return &mode, nil
}

// lockDirectories undoes unlock after an archive that ended early.
func (u *unpacker) lockDirectories() {
	for _, f := range slices.Backward(u.directories) {
		if f.originalMode == nil {
			continue
		}
		if dir, err := u.parent(f.name); err == nil {
			_ = setDirectoryMode(dir, *f.originalMode)
		}
	}
}

func (u *unpacker) finishDirectories() {
	for _, f := range slices.Backward(u.directories) {
		dir, err := u.parent(f.name)
		if err == nil {
			err = setDirectory(dir, f)
		}
		if err != nil {
			u.refuse(f.name, refusal("mode and time were not set: "+err.Error()))
		}
	}
}

func setDirectory(dir *os.Root, f directoryEntry) error {
	if err := dir.Chtimes(".", f.mtime, f.mtime); err != nil {
		return err
	}
	return setDirectoryMode(dir, f.mode)
}

func setDirectoryMode(dir *os.Root, mode uint32) error {
	self, err := dir.OpenFile(".", os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer self.Close()
	return syscall.Fchmod(int(self.Fd()), mode)
}

// checkReplaceable reports whether name exists. A file or link may be replaced; a directory is
// refused.
func checkReplaceable(dir *os.Root, name string) (exists bool, err error) {
	old, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case old.IsDir():
		return true, refusal("a directory of that name exists")
	}
	return true, nil
}

func (u *unpacker) file(dir *os.Root, name string, h *tar.Header, data io.Reader) error {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return refusal("sparse file")
		}
	}
	exists, err := checkReplaceable(dir, name)
	if err != nil {
		return err
	}
	temp := node.NewTempName()
	out, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(disk.ContentWriter(out, exists), pipe.OnlyReader{Reader: data}, make([]byte, 64<<10))
	if err == nil {
		err = syscall.Fchmod(int(out.Fd()), uint32(h.Mode)&0o777)
	}
	err = errors.Join(err, out.Close())
	if err == nil {
		_ = dir.Chtimes(temp, h.ModTime, h.ModTime)
		err = dir.Rename(temp, name)
	}
	if err != nil {
		_ = dir.Remove(temp)
		return err
	}
	u.result.Files++
	u.result.Bytes += n
	return nil
}

// checkTarget refuses a link that could lead out. `..` is allowed at the front only: after a name
// it may follow another link to anywhere.
func checkTarget(name, target string) error {
	if target == "" {
		return refusal("link to nothing")
	}
	if strings.HasPrefix(target, "/") {
		return refusal("link to the absolute path " + target)
	}
	depth, named := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			named = true
		case named:
			return refusal("link target with .. after a name: " + target)
		default:
			if depth--; depth < 0 {
				return refusal("link out of the destination: " + target)
			}
		}
	}
	return nil
}

func (u *unpacker) symlink(dir *os.Root, name, target string) error {
	if err := checkTarget(name, target); err != nil && !u.anyLink {
		return err
	}
	return u.putLink(dir, path.Base(name), func(temp string) error { return dir.Symlink(target, temp) })
}

// putLink creates a link and replaces an old file of that name.
func (u *unpacker) putLink(dir *os.Root, name string, make func(temp string) error) error {
	if _, err := checkReplaceable(dir, name); err != nil {
		return err
	}
	temp := node.NewTempName()
	if err := make(temp); err != nil {
		return err
	}
	if err := dir.Rename(temp, name); err != nil {
		_ = dir.Remove(temp)
		return err
	}
	u.result.Files++
	return nil
}

// hardLink links only to a regular file below the destination.
func (u *unpacker) hardLink(dir *os.Root, name, target string) error {
	source, err := entryName(target)
	if err != nil || source == "" {
		return refusal("hard link out of the destination: " + target)
	}
	if source == name {
		return refusal("hard link to itself")
	}
	// The parent of the link must stay open while the parent of its source is opened.
	here, err := dir.OpenRoot(".")
	if err != nil {
		return err
	}
	defer here.Close()
	from, err := u.parent(path.Dir(source))
	if err != nil {
		return err
	}
	info, err := from.Lstat(path.Base(source))
	if err != nil {
		return refusal("hard link to a missing file: " + target)
	}
	if !info.Mode().IsRegular() {
		return refusal("hard link to something other than a regular file: " + target)
	}
	return u.putLink(here, path.Base(name), func(temp string) error {
		return u.linkFrom(source, path.Join(path.Dir(name), temp), info)
	})
}

// linkFrom makes the link below the root, and removes it if it does not lead to the file that was
// checked.
func (u *unpacker) linkFrom(source, target string, want fs.FileInfo) error {
	if err := u.root.Link(source, target); err != nil {
		return err
	}
	link, err := u.root.Lstat(target)
	if err == nil && !os.SameFile(link, want) {
		err = refusal("hard link target was replaced meanwhile")
	}
	if err != nil {
		_ = u.root.Remove(target)
	}
	return err
}
