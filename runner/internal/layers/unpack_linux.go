package layers

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/openat"
	"hermes-exec/runner/internal/wipe"
)

// Unpack writes an archive of Pack to the new directory dir. An archive that holds anything else
// fails with ErrRefused, one beyond the limits with ErrTooLarge. After a failure nothing of dir is
// left. It reads up to the archive's end marker.
func Unpack(ctx context.Context, in io.Reader, dir string, limits Limits) (err error) {
	if err := syscall.Mkdir(dir, 0o700); err != nil {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	source := &archiveReader{in: in}
	u := unpacker{ctx: ctx, source: source, in: tar.NewReader(source), bound: limits.Bound, take: limits.Take,
		fixed: map[string]struct{}{}, buffer: make([]byte, 256<<10)}
	if limits.Owned {
		to := RunnerOwner()
		u.owners = &Owners{To: to, Others: to.UID == 0}
	}
	for _, path := range limits.Directories {
		for end := range len(path) {
			if path[end] == '/' {
				u.fixed[path[:end]] = struct{}{}
			}
		}
		u.fixed[path] = struct{}{}
	}
	defer func() {
		u.to.close()
		u.store.close()
		if err != nil {
			_ = wipe.RemoveTree(dir)
		}
	}()
	if err := u.to.start(dir); err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return u.unpack()
}

// unpacker makes the entries of an archive. It creates each of them in a directory that it has
// created itself and that is still open, so no name that exists is followed.
type unpacker struct {
	ctx    context.Context
	source *archiveReader
	in     *tar.Reader
	bound  Bound
	take   func(bytes int64) error // may be nil
	size   Size
	fixed  map[string]struct{} // where only directories may be
	owners *Owners             // of a copy of directories
	to     chain
	held   []metadata // of the directories of the chain, for when they are left
	path   []byte     // of the last directory, without a slash at its end
	store  linkStore
	buffer []byte
}

// archiveReader notices the end of a stream. Package tar takes one without an end marker for
// complete, but reads no further than to the marker.
type archiveReader struct {
	in    io.Reader
	ended bool
}

func (r *archiveReader) Read(data []byte) (int, error) {
	n, err := r.in.Read(data)
	r.ended = r.ended || n == 0 && err == io.EOF
	return n, err
}

// metadata is what an entry has besides its contents.
type metadata struct {
	stat       syscall.Stat_t
	attributes map[string][]byte
}

func refuse(reason string) error { return fmt.Errorf("%w: %s", ErrRefused, reason) }

func (u *unpacker) unpack() error {
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := u.in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return explainArchive(err)
		}
		if u.size.Entries++; u.bound.isBelow(Size{Entries: u.size.Entries - 1}) {
			return ErrTooLarge
		}
		if err := u.entry(h); err != nil {
			return u.explain(h.Name, err)
		}
	}
	if u.source.ended {
		return refuse("it is incomplete")
	}
	if len(u.held) == 0 {
		return refuse("it has no entries")
	}
	for len(u.held) > 0 {
		if err := u.leave(); err != nil {
			return u.explain(string(u.path), err)
		}
	}
	return nil
}

func explainArchive(err error) error {
	for _, invalid := range []error{tar.ErrHeader, tar.ErrFieldTooLong, tar.ErrInsecurePath, io.ErrUnexpectedEOF} {
		if errors.Is(err, invalid) {
			return refuse(err.Error())
		}
	}
	return err
}

func (u *unpacker) explain(name string, err error) error {
	name = shorten(name)
	var errno syscall.Errno
	if errors.Is(err, syscall.EEXIST) {
		err = refuse("a name twice")
	}
	if errors.As(err, &errno) {
		return &fs.PathError{Op: "unpack", Path: name, Err: errno}
	}
	if errors.Is(err, ErrRefused) {
		return fmt.Errorf("%w, at %q", err, name)
	}
	return err
}

func (u *unpacker) entry(h *tar.Header) error {
	m, err := readMetadata(h, u.owners != nil)
	if err != nil {
		return err
	}
	if u.owners != nil {
		if !u.owners.apply(&m.stat) || len(u.held) == 0 && h.Uid != 0 {
			return refuse("it belongs to another user")
		}
		if !u.owners.Others { // the user could not give a file capabilities
			delete(m.attributes, capability)
		}
	}
	if len(u.held) == 0 {
		if h.Typeflag != tar.TypeDir || h.Name != "./" {
			return refuse("its first entry is not the layer's directory")
		}
		u.held = append(u.held, m)
		return nil
	}
	name, err := u.find(h)
	if err != nil {
		return err
	}
	dir := u.to.last().fd
	if h.Typeflag == tar.TypeDir {
		return u.enter(name, m)
	}
	if _, ok := u.fixed[u.join(name)]; ok {
		return refuse("only a directory may be here")
	}
	if len(m.attributes) > 0 && h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeFifo {
		return refuse("extended attributes on a link or whiteout")
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(h, dir, name, &m)
	case tar.TypeSymlink:
		return makeSymlink(h.Linkname, dir, name, &m.stat)
	case tar.TypeLink:
		number, err := parseNumber(h.Linkname, u.store.count-1)
		if err != nil {
			return refuse("a hard link to nothing in the archive")
		}
		return u.store.link(int(number), dir, name)
	case tar.TypeChar:
		if h.Devmajor == 0 && h.Devminor == 0 && u.owners == nil {
			return syscall.Mknodat(dir, name, syscall.S_IFCHR, 0)
		}
	case tar.TypeFifo:
		m.stat.Mode |= syscall.S_IFIFO
		if h.PAXRecords[recordType] == socketType {
			m.stat.Mode = m.stat.Mode&0o7777 | syscall.S_IFSOCK
		}
		return makeSpecial(dir, name, &m.stat, m.attributes)
	}
	return refuse("a device or an unknown type")
}

// find leaves directories until the last is the one that holds an entry, and returns the entry's
// name in it.
func (u *unpacker) find(h *tar.Header) (string, error) {
	path := h.Name
	if h.Typeflag == tar.TypeDir {
		path = strings.TrimSuffix(path, "/")
	}
	parent, name := "", path
	if slash := strings.LastIndexByte(path, '/'); slash >= 0 {
		if parent, name = path[:slash], path[slash+1:]; parent == "" {
			return "", refuse("an absolute name")
		}
	}
	if name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsRune(name, 0) {
		return "", refuse("an invalid name")
	}
	for parent != string(u.path) {
		if len(u.held) == 1 {
			return "", refuse("not directly after the entries of its directory")
		}
		if err := u.leave(); err != nil {
			return "", err
		}
	}
	return name, nil
}

func (u *unpacker) join(name string) string {
	if len(u.path) == 0 {
		return name
	}
	return string(u.path) + "/" + name
}

func (u *unpacker) enter(name string, m metadata) error {
	if len(u.held) > maxDepth {
		return refuse("directories are nested too deeply")
	}
	if err := syscall.Mkdirat(u.to.last().fd, name, 0o700); err != nil {
		return err
	}
	if err := u.to.push(name); err != nil {
		return err
	}
	u.held, u.path = append(u.held, m), []byte(u.join(name))
	return nil
}

// leave completes the last directory.
func (u *unpacker) leave() error {
	last := len(u.held) - 1
	if last == 0 {
		if err := u.store.remove(u.to.last().fd); err != nil {
			return err
		}
	}
	d, err := u.to.pop()
	defer syscall.Close(d.fd)
	if err == nil {
		err = u.held[last].set(d.fd)
	}
	u.held, u.path = u.held[:last], u.path[:max(0, len(u.path)-len(d.name)-1)]
	return err
}

// set gives an open entry its metadata.
func (m *metadata) set(fd int) error {
	return setMetadata(fd, &m.stat, func() error {
		for name, value := range m.attributes {
			if err := setXattr(fd, name, value); err != nil {
				return err
			}
		}
		return nil
	})
}

func (u *unpacker) file(h *tar.Header, dir int, name string, m *metadata) error {
	fd, err := syscall.Openat(dir, name, openat.NewFileFlags, 0o600)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	size, parts, err := u.parts(h)
	if err != nil {
		return err
	}
	for _, a := range parts {
		if err := u.data(fd, a); err != nil {
			return err
		}
	}
	if len(parts) == 0 || parts[len(parts)-1].end < size {
		if err := syscall.Ftruncate(fd, size); err != nil {
			return err
		}
	}
	if err := m.set(fd); err != nil {
		return err
	}
	number, ok := h.PAXRecords[recordLink]
	if !ok {
		return nil
	}
	if number != strconv.Itoa(u.store.count) {
		return refuse("numbers of files with several names do not follow each other")
	}
	return u.store.add(dir, name, u.to.dirs[0].fd)
}

// parts returns the size of a file and the places of the data in the archive.
func (u *unpacker) parts(h *tar.Header) (size int64, parts []part, err error) {
	text, ok := h.PAXRecords[recordSize]
	if !ok {
		return h.Size, []part{{0, h.Size}}, nil
	}
	size, err = parseNumber(text, math.MaxInt64)
	count, countErr := parseNumber(h.PAXRecords[recordParts], maxParts)
	if err != nil || countErr != nil || count*partSize > h.Size {
		return 0, nil, refuse("an invalid file with holes")
	}
	list := make([]byte, count*partSize)
	if _, err := io.ReadFull(u.in, list); err != nil {
		return 0, nil, explainArchive(err)
	}
	left, end := h.Size-int64(len(list)), int64(0)
	for ; len(list) > 0; list = list[partSize:] {
		begin, length := int64(binary.BigEndian.Uint64(list)), int64(binary.BigEndian.Uint64(list[8:]))
		if begin < end || length <= 0 || length > left || begin > size-length {
			return 0, nil, refuse("an invalid file with holes")
		}
		end, left = begin+length, left-length
		parts = append(parts, part{begin, end})
	}
	if left != 0 {
		return 0, nil, refuse("an invalid file with holes")
	}
	return size, parts, nil
}

// data writes the next bytes of the archive to their place.
func (u *unpacker) data(fd int, a part) error {
	u.size.Bytes += a.end - a.begin
	if u.bound.isBelow(Size{Bytes: u.size.Bytes}) {
		return ErrTooLarge
	}
	if u.take != nil {
		if err := u.take(a.end - a.begin); err != nil {
			return err
		}
	}
	for at := a.begin; at < a.end; {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(u.in, u.buffer[:min(int64(len(u.buffer)), a.end-at)])
		if err != nil {
			return explainArchive(err)
		}
		if err := writeAt(fd, u.buffer[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// readMetadata checks the records of a header. The attributes of a copy of directories are the tenant's.
func readMetadata(h *tar.Header, owned bool) (m metadata, err error) {
	if h.Format&tar.FormatPAX == 0 {
		return m, refuse("not a PAX entry")
	}
	if h.Mode < 0 || h.Mode > 0o7777 {
		return m, refuse("an invalid mode")
	}
	const maxID = math.MaxUint32 - 1 // the number above it means no change
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		return m, refuse("an invalid owner")
	}
	m.stat = syscall.Stat_t{Mode: uint32(h.Mode), Uid: uint32(h.Uid), Gid: uint32(h.Gid),
		Mtim: syscall.Timespec{Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond())},
		Atim: syscall.Timespec{Sec: h.AccessTime.Unix(), Nsec: int64(h.AccessTime.Nanosecond())}}
	m.attributes = map[string][]byte{}
	total := 0
	for key, text := range h.PAXRecords {
		escaped, ok := strings.CutPrefix(key, recordXattr)
		if !ok {
			if !isKnownRecord(key) {
				return m, refuse("an unknown record")
			}
			continue
		}
		name, nameErr := url.PathUnescape(escaped)
		value, valueErr := base64.StdEncoding.DecodeString(text)
		if nameErr != nil || valueErr != nil || !isCopied(name) || strings.ContainsRune(name, 0) {
			return m, refuse("an extended attribute that tenants do not have")
		}
		if packed, err := isPacked(name, value, h.Typeflag == tar.TypeDir); !owned && (err != nil || !packed) {
			return m, refuse(errForeignOverlay.Error())
		}
		if total += len(name) + len(value); total > maxXattrBytes {
			return m, refuse("too many extended attributes")
		}
		m.attributes[name] = value
	}
	return m, nil
}

func isKnownRecord(key string) bool {
	switch key {
	case "path", "linkpath", "size", "uid", "gid", "mtime", "atime", recordLink, recordType, recordSize, recordParts:
		return true
	}
	return false
}

// parseNumber parses a number from 0 to most.
func parseNumber[T int | int64](text string, most T) (int64, error) {
	number, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (number < 0 || number > int64(most)) {
		err = strconv.ErrRange
	}
	return number, err
}
