package search

import (
	"context"
	"io"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"sync/atomic"
	"syscall"

	"hermes-exec/runner/internal/ipc"
	"hermes-exec/runner/internal/reach"
)

const (
	// maxWaiting bounds the open files between the walk and the result.
	maxWaiting = 16
	// maxFiles bounds the list of files with matches; their count is exact.
	maxFiles = 20_000
)

// fileJob is one open file on its way through the search.
type fileJob struct {
	path ipc.Bytes
	file *os.File
	done chan struct{}

	scan  *scanner
	err   error
	mtime float64
}

// contentSearch reads many files at a time and returns results in the order of paths.
type contentSearch struct {
	ctx        context.Context
	p          *params
	makeFinder func() finder
	prefix     []byte
	// keepsReturn is set if the pattern looks for a CR.
	keepsReturn bool
	result      *Result
	size        int
	// matchCount is the number of matches in the collected files.
	matchCount atomic.Int64
}

func newContentSearch(ctx context.Context, p *params, re *regexp.Regexp) *contentSearch {
	prefix, _ := re.LiteralPrefix()
	makeFinder := func() finder { return newRegexFinder(re) }
	if p.isFixed() {
		makeFinder = func() finder { return newFixedFinder(string(p.Pattern), p.IgnoreCase) }
	}
	return &contentSearch{ctx: ctx, p: p, makeFinder: makeFinder, prefix: []byte(prefix),
		keepsReturn: requires(re, '\r'), result: newResult()}
}

func (c *contentSearch) run(where place, root string, info fs.FileInfo) (*Result, error) {
	waiting := make(chan *fileJob, maxWaiting)
	work := make(chan *fileJob, maxWaiting)
	collected := make(chan struct{})
	for range max(1, min(runtime.GOMAXPROCS(0), 4)) {
		go func() {
			// One block for all files of this worker: many small files would each leave a block
			// behind.
			block := make([]byte, 0, blockSize)
			for j := range work {
				c.scan(j, block, 0, c.p.Offset+c.p.limit-int(c.matchCount.Load()))
				close(j.done)
			}
		}()
	}
	go func() {
		defer close(collected)
		for j := range waiting {
			<-j.done
			c.collect(j)
		}
	}()
	var failed []string
	open := func(path string, display ipc.Bytes) {
		j, err := openJob(path, display)
		switch {
		case err != nil && len(failed) < maxErrors:
			failed = append(failed, path+": "+reason(err))
		case j != nil:
			waiting <- j
			work <- j
		}
	}
	w := c.p.walker(c.ctx, where)
	if info.IsDir() {
		w.visit = func(f walkEntry) {
			switch display := displayPath(where.base, f.relative); {
			case f.kind.IsRegular():
				open(f.full, display)
			case f.kind&fs.ModeSymlink != 0:
				w.skipped.add(reasonLink, display)
			}
		}
		w.run(root, where.start)
	} else {
		open(root, c.p.Path)
	}
	close(waiting)
	close(work)
	<-collected
	if err := CheckCanceled(c.ctx); err != nil {
		return nil, err
	}
	r := c.result
	r.Errors = append(r.Errors, failed...)
	r.finish(w)
	r.Truncated = r.Truncated || r.Total > c.p.Offset+len(r.Matches)
	return r, nil
}

// openJob opens a regular file and never blocks. It returns nil for an empty or missing file.
func openJob(path string, display ipc.Bytes) (*fileJob, error) {
	file, err := reach.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err == syscall.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, err
	}
	return &fileJob{path: display, file: file, done: make(chan struct{}), mtime: mtime(info)}, nil
}

func (c *contentSearch) scan(j *fileJob, block []byte, from, to int) {
	j.scan = &scanner{ctx: c.ctx, find: c.makeFinder(), prefix: c.prefix, context: c.p.Context, maxLine: c.p.MaxLine,
		keepFrom: from, keepTo: to, keepsReturn: c.keepsReturn}
	j.err = j.scan.scan(j.file, block)
}

// collect takes the files in order. Therefore it alone knows which matches lie in the requested
// window.
func (c *contentSearch) collect(j *fileJob) {
	defer j.file.Close()
	r, s := c.result, j.scan
	switch {
	case j.err != nil:
		if len(r.Errors) < maxErrors {
			r.Errors = append(r.Errors, string(j.path)+": "+reason(j.err))
		}
		return
	case s.binary:
		r.Skipped.add(reasonBinary, j.path)
		return
	case s.count == 0:
		return
	}
	from := max(0, c.p.Offset-r.Total)
	to := min(s.count, c.p.Offset+c.p.limit-r.Total)
	if from < to {
		kept := s.kept[min(from, len(s.kept)):min(to, len(s.kept))]
		if s.full && len(kept) < to-from {
			kept = c.rescan(j, from, to)
		}
		c.add(j, kept)
	}
	r.Total += s.count
	r.TotalFiles++
	if c.size += len(j.path) + 60; len(r.Files) < maxFiles && c.size < maxAnswer {
		r.Files = append(r.Files, File{Path: j.path, Count: s.count, MTime: j.mtime})
	}
	c.matchCount.Store(int64(r.Total))
}

// rescan reads the file a second time for matches that the first pass had no room for.
func (c *contentSearch) rescan(j *fileJob, from, to int) []Match {
	if _, err := j.file.Seek(0, io.SeekStart); err != nil {
		return nil
	}
	c.scan(j, make([]byte, 0, blockSize), from, to)
	return j.scan.kept
}

func (c *contentSearch) add(j *fileJob, kept []Match) {
	for _, m := range kept {
		m.Path = j.path
		c.size += len(m.Path) + len(m.Text)*2 + 80
		for _, b := range m.Before {
			c.size += len(b) * 2
		}
		for _, a := range m.After {
			c.size += len(a) * 2
		}
		if c.size > maxAnswer {
			c.result.Truncated = true
			return
		}
		c.result.Matches = append(c.result.Matches, m)
	}
}
