package output

import "sync"

// Streams of a command, numbered as their channels on the wire.
const (
	Stdout = 1
	Stderr = 2
	Merged = 3
)

// maxSegments bounds the list that describes the order of arrival; beyond it
// the merged view is kept as bytes.
const maxSegments = 4096

// Segment is a run of bytes of one stream.
type Segment [2]int64 // stream, length

// Result is what a Collector kept. Segments tell how to put the merged view
// together from stdout and stderr; without them MergedParts holds it.
type Result struct {
	Stdout, Stderr, Merged                Kept
	StdoutParts, StderrParts, MergedParts [][]byte
	Segments                              []Segment
	StdoutSpill, StderrSpill              string
}

// Collector takes the output of one command. Write may be called by one
// goroutine for each stream.
type Collector struct {
	limit  int
	spills *Spills
	name   string

	mu       sync.Mutex
	joint    chunked // all bytes in order of arrival, while they fit
	segments []Segment
	totals   [3]int64
	split    *[4]*bounded // by stream, once they do not
	files    [3]*spillFile
	closed   bool
}

// NewCollector keeps limit bytes of each stream and of the merged view. A
// stream that exceeds it goes whole into a file of spills (nil: nowhere).
func NewCollector(limit int, spills *Spills, name string) *Collector {
	return &Collector{limit: limit, spills: spills, name: name}
}

// Write adds bytes of a stream; p stays the caller's.
func (c *Collector) Write(stream int, p []byte) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	before := c.totals[stream]
	c.totals[stream] += int64(len(p))
	var earlier [][]byte
	over := c.totals[stream] > int64(c.limit)
	if over && before <= int64(c.limit) && c.spills != nil {
		earlier = c.copyOf(stream)
	}
	c.keep(stream, p)
	c.mu.Unlock()
	if over && c.spills != nil {
		c.spill(stream, earlier, p)
	}
}

func (c *Collector) keep(stream int, p []byte) {
	if c.split == nil && c.joint.size+len(p) <= c.limit && len(c.segments) < maxSegments {
		c.joint.write(p)
		if n := len(c.segments); n > 0 && c.segments[n-1][0] == int64(stream) {
			c.segments[n-1][1] += int64(len(p))
		} else {
			c.segments = append(c.segments, Segment{int64(stream), int64(len(p))})
		}
		return
	}
	if c.split == nil {
		c.split = &[4]*bounded{Stdout: newBounded(c.limit), Stderr: newBounded(c.limit)}
		c.eachSegment(c.keepSplit)
		c.joint, c.segments = chunked{}, nil
	}
	c.keepSplit(stream, p)
}

// keepSplit makes the merged view when the second stream says something: until
// then it is that of the first.
func (c *Collector) keepSplit(stream int, p []byte) {
	other := Stdout + Stderr - stream
	if c.split[Merged] == nil && c.split[other].total > 0 {
		c.split[Merged] = c.split[other].clone()
	}
	c.split[stream].write(p)
	if c.split[Merged] != nil {
		c.split[Merged].write(p)
	}
}

func (c *Collector) eachSegment(visit func(stream int, part []byte)) {
	at := int64(0)
	for _, s := range c.segments {
		c.joint.pieces(at, s[1], func(part []byte) { visit(int(s[0]), part) })
		at += s[1]
	}
}

// copyOf returns everything that a stream printed so far; nothing was dropped.
func (c *Collector) copyOf(stream int) [][]byte {
	var all [][]byte
	if c.split == nil {
		c.eachSegment(func(s int, part []byte) {
			if s == stream {
				all = append(all, append([]byte(nil), part...))
			}
		})
		return all
	}
	for _, part := range c.split[stream].parts() {
		all = append(all, append([]byte(nil), part...))
	}
	return all
}

func (c *Collector) spill(stream int, earlier [][]byte, p []byte) {
	c.mu.Lock()
	file := c.files[stream]
	c.mu.Unlock()
	if file == nil {
		name := c.name + "-stdout"
		if stream == Stderr {
			name = c.name + "-stderr"
		}
		file = c.spills.create(name)
		c.mu.Lock()
		c.files[stream] = file
		c.mu.Unlock()
		for _, part := range earlier {
			file.write(part)
		}
	}
	file.write(p)
}

// Finish ends the collection and gives what was kept. Later writes are dropped.
func (c *Collector) Finish() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var r Result
	r.StdoutSpill, r.StderrSpill = c.files[Stdout].finish(), c.files[Stderr].finish()
	if c.split == nil {
		c.finishJoint(&r)
		return r
	}
	r.Stdout, r.Stderr = c.split[Stdout].kept(), c.split[Stderr].kept()
	r.StdoutParts, r.StderrParts = c.split[Stdout].parts(), c.split[Stderr].parts()
	switch {
	case r.Stderr.Total == 0:
		r.Merged, r.Segments = r.Stdout, []Segment{{Stdout, r.Stdout.Head + r.Stdout.Tail}}
	case r.Stdout.Total == 0:
		r.Merged, r.Segments = r.Stderr, []Segment{{Stderr, r.Stderr.Head + r.Stderr.Tail}}
	default:
		r.Merged, r.MergedParts = c.split[Merged].kept(), c.split[Merged].parts()
	}
	return r
}

func (c *Collector) finishJoint(r *Result) {
	r.Segments = c.segments
	if r.Segments == nil {
		r.Segments = []Segment{}
	}
	total := int64(c.joint.size)
	r.Merged = Kept{Total: total, Head: total}
	r.Stdout = Kept{Total: c.totals[Stdout], Head: c.totals[Stdout]}
	r.Stderr = Kept{Total: c.totals[Stderr], Head: c.totals[Stderr]}
	c.eachSegment(func(stream int, part []byte) {
		if stream == Stdout {
			r.StdoutParts = append(r.StdoutParts, part)
		} else {
			r.StderrParts = append(r.StderrParts, part)
		}
	})
}
