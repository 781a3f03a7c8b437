package layers

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hermes-exec/runner/internal/openat"
)

// Pack writes a directory of a layer with an owner as an archive, and returns what it has left out:
// extended attributes of more than 128 KiB on one entry. Directories nested more than 500 levels deep
// fail with ENAMETOOLONG. A file that becomes shorter meanwhile is filled with zeros.
func Pack(ctx context.Context, dir string, owner *Owner, out io.Writer) (Skipped, error) {
	p := packer{ctx: ctx, out: tar.NewWriter(out), xattrs: newXattrReader(isCopied), links: map[fileID]int{},
		buffer: make([]byte, 256<<10)}
	if owner != nil {
		p.owners = &Owners{From: *owner, Others: true}
	}
	w := walk{ctx: ctx, op: "pack"}
	if err := w.run(dir, &p); err != nil {
		return p.skipped, err
	}
	return p.skipped, p.out.Close()
}

// packer writes the entries of a walk.
type packer struct {
	ctx     context.Context
	out     *tar.Writer
	xattrs  *xattrReader
	links   map[fileID]int
	owners  *Owners // of a copy of directories
	path    []byte  // of the current directory, with a slash at its end
	depth   int
	skipped Skipped
	buffer  []byte
}

func (p *packer) enter(d *directory) error {
	if p.depth++; p.depth > maxDepth+1 {
		return syscall.ENAMETOOLONG
	}
	name := "./"
	if d.name != "" {
		p.path = append(append(p.path, d.name...), '/')
		name = string(p.path)
	}
	h := p.newHeader(tar.TypeDir, name, &d.stat)
	each := func(do func(string, []byte) error) error { return p.xattrs.each(d.fd, do) }
	if err := p.attributes(h, each); err != nil {
		return err
	}
	return p.out.WriteHeader(h)
}

func (p *packer) leave(d *directory) error {
	p.depth--
	p.path = p.path[:max(0, len(p.path)-len(d.name)-1)]
	return nil
}

func (p *packer) newHeader(kind byte, name string, stat *syscall.Stat_t) *tar.Header {
	st := *stat
	if p.owners != nil {
		p.owners.apply(&st)
	}
	return &tar.Header{Typeflag: kind, Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), AccessTime: time.Unix(st.Atim.Unix()), Format: tar.FormatPAX,
		PAXRecords: map[string]string{}}
}

// attributes adds extended attributes to a header.
func (p *packer) attributes(h *tar.Header, each func(do func(name string, value []byte) error) error) error {
	total := 0
	records := map[string]string{}
	err := each(func(name string, value []byte) error {
		packed, err := p.owners != nil, error(nil)
		if !packed {
			packed, err = isPacked(name, value, h.Typeflag == tar.TypeDir)
		}
		if packed {
			total += len(name) + len(value)
			records[recordXattr+escapeName(name)] = base64.StdEncoding.EncodeToString(value)
		}
		return err
	})
	if errors.Is(err, errForeignOverlay) {
		return fmt.Errorf("%s: %w", shorten(h.Name), err)
	}
	if err != nil {
		return err
	}
	if total > maxXattrBytes {
		p.skipped.add(h.Name, fmt.Sprintf("%d bytes of extended attributes", total))
		return nil
	}
	for key, value := range records {
		h.PAXRecords[key] = value
	}
	return nil
}

// escapeName writes a name of an attribute as libarchive does.
func escapeName(name string) string {
	var escaped strings.Builder
	for _, b := range []byte(name) {
		if b <= ' ' || b > '~' || b == '%' || b == '=' {
			fmt.Fprintf(&escaped, "%%%02X", b)
		} else {
			escaped.WriteByte(b)
		}
	}
	return escaped.String()
}

func (p *packer) entry(dir int, name string) error {
	var st syscall.Stat_t
	if err := openat.Stat(dir, name, &st); err != nil {
		return err
	}
	path := string(p.path) + name
	switch kind := st.Mode & syscall.S_IFMT; {
	case kind == syscall.S_IFREG:
		return p.file(dir, name, path, &st)
	case kind == syscall.S_IFLNK:
		h := p.newHeader(tar.TypeSymlink, path, &st)
		var err error
		if h.Linkname, err = openat.ReadLink(dir, name); err != nil {
			return err
		}
		return p.out.WriteHeader(h)
	case isWhiteout(&st):
		return p.out.WriteHeader(p.newHeader(tar.TypeChar, path, &st))
	case kind == syscall.S_IFIFO || kind == syscall.S_IFSOCK:
		return p.special(dir, name, path, &st)
	case kind == syscall.S_IFDIR:
		return errChanged
	}
	return syscall.EPERM // a device, which no tenant can make
}

func (p *packer) special(dir int, name, path string, st *syscall.Stat_t) error {
	h := p.newHeader(tar.TypeFifo, path, st)
	if st.Mode&syscall.S_IFMT == syscall.S_IFSOCK {
		h.PAXRecords[recordType] = socketType
	}
	fd, err := openat.OpenHandle(dir, name)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	each := func(do func(string, []byte) error) error { return p.xattrs.eachOfHandle(fd, do) }
	if err := p.attributes(h, each); err != nil {
		return err
	}
	return p.out.WriteHeader(h)
}

func (p *packer) file(dir int, name, path string, seen *syscall.Stat_t) error {
	if number, ok := p.links[idOf(seen)]; ok {
		h := p.newHeader(tar.TypeLink, path, seen)
		h.Linkname = strconv.Itoa(number)
		return p.out.WriteHeader(h)
	}
	fd, err := openat.OpenLocked(dir, name, openat.FileFlags)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	if idOf(&st) != idOf(seen) || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return errChanged
	}
	h := p.newHeader(tar.TypeReg, path, &st)
	if seen.Nlink > 1 {
		if len(p.links) == maxLinked {
			return errTooMany
		}
		h.PAXRecords[recordLink] = strconv.Itoa(len(p.links))
		p.links[idOf(seen)] = len(p.links)
	}
	each := func(do func(string, []byte) error) error { return p.xattrs.each(fd, do) }
	if err := p.attributes(h, each); err != nil {
		return err
	}
	return p.contents(h, fd, st.Size)
}

// contents writes the header and the body of a file.
func (p *packer) contents(h *tar.Header, fd int, size int64) error {
	parts, err := findParts(fd, size)
	if err != nil {
		return err
	}
	var list []byte
	if len(parts) != 1 || parts[0] != (part{0, size}) {
		for _, a := range parts {
			list = binary.BigEndian.AppendUint64(list, uint64(a.begin))
			list = binary.BigEndian.AppendUint64(list, uint64(a.end-a.begin))
			h.Size += a.end - a.begin
		}
		h.Size += int64(len(list))
		if size > 0 {
			h.PAXRecords[recordSize], h.PAXRecords[recordParts] = strconv.FormatInt(size, 10), strconv.Itoa(len(parts))
		}
	} else {
		h.Size = size
	}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	if _, err := p.out.Write(list); err != nil {
		return err
	}
	for _, a := range parts {
		if err := p.data(fd, a); err != nil {
			return err
		}
	}
	return nil
}

// data writes one part of a file, and zeros for what it does not have any more.
func (p *packer) data(fd int, a part) error {
	for at := a.begin; at < a.end; {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		wanted := p.buffer[:min(int64(len(p.buffer)), a.end-at)]
		n, err := syscall.Pread(fd, wanted, at)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			clear(wanted)
			n = len(wanted)
		}
		if _, err := p.out.Write(wanted[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}
