package search

import (
	"container/heap"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"slices"
	"strings"

	"hermes-exec/runner/internal/ipc"
)

// newestFiles keeps the n newest of any number of files.
type newestFiles struct {
	n     int
	files []File
}

func (h *newestFiles) Len() int           { return len(h.files) }
func (h *newestFiles) Less(i, j int) bool { return compareFiles(h.files[i], h.files[j]) > 0 }
func (h *newestFiles) Swap(i, j int)      { h.files[i], h.files[j] = h.files[j], h.files[i] }
func (h *newestFiles) Push(x any)         { h.files = append(h.files, x.(File)) }

func (h *newestFiles) Pop() any {
	last := h.files[len(h.files)-1]
	h.files = h.files[:len(h.files)-1]
	return last
}

func (h *newestFiles) add(f File) {
	if h.n == 0 {
		return
	}
	if len(h.files) < h.n {
		heap.Push(h, f)
	} else if compareFiles(f, h.files[0]) < 0 {
		h.files[0] = f
		heap.Fix(h, 0)
	}
}

// compareFiles orders by time, the newest first, then by path.
func compareFiles(a, b File) int {
	switch {
	case a.MTime > b.MTime:
		return -1
	case a.MTime < b.MTime:
		return 1
	}
	return strings.Compare(string(a.Path), string(b.Path))
}

func (h *newestFiles) newestFirst() []File {
	slices.SortFunc(h.files, compareFiles)
	return h.files
}

func mtime(info fs.FileInfo) float64 { return float64(info.ModTime().UnixNano()) / 1e9 }

func (p *params) listFiles(ctx context.Context, where place, root string, info fs.FileInfo) (*Result, error) {
	r := newResult()
	keep := &newestFiles{n: min(p.Offset, 1_000_000) + p.limit}
	if !info.IsDir() {
		if where.wants(info.Name(), info.Name()) {
			r.Total = 1
			keep.add(File{Path: p.Path, MTime: mtime(info)})
		}
	} else {
		w := p.walker(ctx, where)
		w.visit = func(f walkEntry) {
			display := displayPath(where.base, f.relative)
			if f.isDir {
				w.skipped.add(reasonDirectory, display)
			} else if info, err := os.Lstat(f.full); err == nil {
				r.Total++
				keep.add(File{Path: display, MTime: mtime(info)})
			}
		}
		w.run(root, where.start)
		if err := CheckCanceled(ctx); err != nil {
			return nil, err
		}
		r.finish(w)
	}
	r.TotalFiles = r.Total
	if files := keep.newestFirst(); p.Offset < len(files) {
		r.Files = files[p.Offset:]
	}
	r.Truncated = r.Truncated || r.Total > p.Offset+len(r.Files)
	return r, nil
}

// GlobResult is the answer of file.glob.
type GlobResult struct {
	Paths []ipc.Bytes `json:"paths"`
	Total int         `json:"total"`
}

// Glob carries out file.glob: it returns the files and directories below path whose path matches
// the pattern, the newest first. Names with a leading dot match only if the pattern has one.
func Glob(ctx context.Context, workdir string, raw json.RawMessage) (*GlobResult, error) {
	var p struct {
		Pattern ipc.Bytes `json:"pattern"`
		Path    ipc.Bytes `json:"path"`
		Limit   *int      `json:"limit"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, badRequest("file.glob: %v", err)
	}
	if p.Pattern == "" {
		return nil, badRequest("the pattern is empty")
	}
	if p.Limit != nil && *p.Limit < 0 {
		return nil, badRequest("limit must not be negative")
	}
	asked := string(p.Path)
	if asked == "" {
		asked = "."
	}
	where := locate(workdir, asked, string(p.Pattern))
	root, err := Resolve(workdir, where.base)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(root); err != nil && where.base == asked && where.start == "" {
		return nil, osError(root, err)
	}
	exists, err := isDirectory(workdir, where)
	if err != nil {
		return nil, err
	}
	if !exists {
		return &GlobResult{Paths: []ipc.Bytes{}}, nil
	}
	glob, err := compileGlob(where.pattern)
	if err != nil {
		return nil, badRequest("glob %q: %v", p.Pattern, err)
	}
	keep := &newestFiles{n: maxLimit}
	if p.Limit != nil {
		keep.n = min(*p.Limit, maxLimit)
	}
	result := &GlobResult{Paths: []ipc.Bytes{}}
	w := &walker{ctx: ctx, hidden: where.hidden, maxDepth: where.depth}
	w.wanted = func(relative, _ string) bool { return glob.match(relative) }
	w.visit = func(f walkEntry) {
		if info, err := os.Lstat(f.full); err == nil {
			result.Total++
			keep.add(File{Path: displayPath(where.base, f.relative), MTime: mtime(info)})
		}
	}
	w.run(root, where.start)
	if err := CheckCanceled(ctx); err != nil {
		return nil, err
	}
	size := 0
	for _, f := range keep.newestFirst() {
		if size += len(f.Path) * 3 / 2; size > maxAnswer {
			break
		}
		result.Paths = append(result.Paths, f.Path)
	}
	return result, nil
}
