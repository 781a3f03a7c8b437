package files

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/node"
	"hermes-exec/runner/internal/reach"
	"hermes-exec/runner/internal/search"
)

// Stat describes one file in the form of the protocol.
type Stat struct {
	Path   ipc.Bytes  `json:"path"`
	Name   ipc.Bytes  `json:"name"`
	Type   string     `json:"type"`
	Size   int64      `json:"size"`
	Mode   uint32     `json:"mode"`
	UID    int        `json:"uid"`
	GID    int        `json:"gid"`
	MTime  float64    `json:"mtime"`
	Links  int64      `json:"links"`
	ID     string     `json:"id"`
	Target *ipc.Bytes `json:"target,omitempty"`
}

// newStat describes the file of info. path is the path in the result; real is the path from which a
// link's target is read.
func newStat(path, real string, info fs.FileInfo) Stat {
	uid, gid := node.Owner(info)
	s := Stat{Path: ipc.Bytes(path), Name: ipc.Bytes(baseName(path, info)), Type: node.TypeName(info.Mode()),
		Size: info.Size(), Mode: node.Mode(info),
		UID: uid, GID: gid, MTime: float64(info.ModTime().UnixNano()) / 1e9, Links: node.LinkCount(info),
		ID: node.IDOf(info).String()}
	if s.Type == "link" {
		if target, err := os.Readlink(real); err == nil {
			t := ipc.Bytes(target)
			s.Target = &t
		}
	}
	return s
}

func baseName(path string, info fs.FileInfo) string {
	if name := filepath.Base(path); name != "." && name != ".." {
		return name
	}
	return info.Name()
}

func statFile(r *request) (any, error) {
	var p struct {
		Path   ipc.Bytes `json:"path"`
		Follow *bool     `json:"follow"`
	}
	if err := r.decode(&p); err != nil {
		return nil, err
	}
	path, err := r.resolve(p.Path)
	if err != nil {
		return nil, err
	}
	stat := os.Stat
	if p.Follow != nil && !*p.Follow {
		stat = os.Lstat
	}
	info, err := stat(path)
	if err != nil {
		return nil, convert(path, err)
	}
	return newStat(string(p.Path), path, info), nil
}

const (
	defaultEntries = 100_000
	// maxNameBytes bounds the names held at once while directories are read.
	maxNameBytes = 32 << 20
	nameSize     = 24 // of a name besides its bytes
	// maxAnswer keeps a listing below the size of one RESPONSE.
	maxAnswer = 20 << 20
)

type lister struct {
	ctx    context.Context
	params struct {
		Path      ipc.Bytes `json:"path"`
		Recursive bool      `json:"recursive"`
		Limit     int       `json:"limit"`
		Only      string    `json:"only"`
		Name      ipc.Bytes `json:"name"`
		Force     bool      `json:"force"`
		Follow    bool      `json:"follow"`
	}
	nameBytes int
	bytes     int
	entries   []Stat
	truncated bool
}

func listDir(r *request) (any, error) {
	l := lister{ctx: r.ctx, entries: []Stat{}}
	if err := r.decode(&l.params); err != nil {
		return nil, err
	}
	if l.params.Limit <= 0 || l.params.Limit > defaultEntries {
		l.params.Limit = defaultEntries
	}
	path, err := r.resolve(l.params.Path)
	if err != nil {
		return nil, err
	}
	err = l.directory(strings.TrimSuffix(string(l.params.Path), "/"), path)
	if canceled := search.CheckCanceled(r.ctx); canceled != nil {
		err = canceled
	}
	if err != nil {
		return nil, convert(path, err)
	}
	return map[string]any{"entries": l.entries, "truncated": l.truncated}, nil
}

// directory adds the entries of real, sorted by name, each directory before its contents.
func (l *lister) directory(display, real string) error {
	before := l.nameBytes
	names, err := l.read(real)
	if err != nil {
		return err
	}
	defer func() { l.nameBytes = before }()
	for _, name := range names {
		if len(l.entries) >= l.params.Limit || l.bytes > maxAnswer || l.ctx.Err() != nil {
			l.truncated = true
			return nil
		}
		child := display + "/" + name
		if display == "." || (display == "" && !strings.HasPrefix(real, "/")) {
			child = name
		}
		info, err := os.Lstat(real + "/" + name)
		if err != nil {
			continue // removed since the directory was read
		}
		p, kind := &l.params, node.TypeName(info.Mode())
		if (p.Only == "" || p.Only == kind) && cmp.Or(string(p.Name), name) == name {
			entry := newStat(child, real+"/"+name, info)
			if l.params.Follow {
				entry = follow(entry, real+"/"+name)
			}
			l.entries = append(l.entries, entry)
			l.bytes += len(child) + len(name) + 210
		}
		if l.params.Recursive && info.IsDir() {
			mode := node.Mode(info)
			forced := l.params.Force && mode&0o500 != 0o500 && syscall.Chmod(real+"/"+name, mode|0o500) == nil
			// A directory that cannot be read is listed without its contents.
			_ = l.directory(child, real+"/"+name)
			if forced {
				_ = syscall.Chmod(real+"/"+name, mode)
			}
		}
	}
	return nil
}

// follow describes the target of a link. A link without target stays a link.
func follow(entry Stat, path string) Stat {
	if info, err := os.Stat(path); err == nil {
		target := entry.Target
		entry = newStat(string(entry.Path), path, info)
		entry.Target = target
	}
	return entry
}

func (l *lister) read(path string) ([]string, error) {
	dir, err := reach.Open(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var names []string
	for err == nil && l.nameBytes <= maxNameBytes {
		var some []string
		some, err = dir.Readdirnames(1024)
		for _, name := range some {
			l.nameBytes += len(name) + nameSize
		}
		names = append(names, some...)
	}
	l.truncated = l.truncated || err == nil
	slices.Sort(names)
	return names, nil
}
