package output

import (
	"sync"

	"hermes-exec/runner/internal/budget"
)

// Streams of a command, numbered as their channels on the wire.
const (
	Stdout = 1
	Stderr = 2
	Merged = 3
)

// maxSegments bounds the list that describes the order of arrival. Above it the merged view is kept
// as bits.
const maxSegments = 4096

// Segment is a run of bytes of one stream.
type Segment [2]int64 // stream, length

// Result is the output that a Collector kept. Segments describe how to merge stdout and stderr;
// without them EachMerged visits the merged view.
type Result struct {
	Stdout, Stderr, Merged   Counts
	StdoutParts, StderrParts [][]byte
	EachMerged               func(visit func(part []byte))
	Segments                 []Segment
	StdoutSpill, StderrSpill string
}

// Collector collects the output of one command. Write may be called by one goroutine for each
// stream.
type Collector struct {
	limit   int
	spills  *Spills
	name    string
	account *budget.Account

	mu       sync.Mutex
	streams  [3]*headTail
	segments []Segment
	order    *order // replaces segments when there are too many or something was dropped
	files    [3]*spillFile
	closed   bool
}

// NewCollector keeps limit bytes of each stream and of the merged view, or less if memory is short.
// A stream that loses bytes also goes whole into a file of spills (nil: nowhere).
func NewCollector(limit int, spills *Spills, name string, memory *budget.Budget) *Collector {
	return &Collector{limit: limit, spills: spills, name: name, account: memory.Open()}
}

// Write adds bytes of a stream; p stays the caller's.
func (c *Collector) Write(stream int, p []byte) {
	if file := c.keep(stream, p); file != nil {
		file.write(p)
	}
}

// keep adds p and returns the file that gets p too.
func (c *Collector) keep(stream int, p []byte) *spillFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(p) == 0 {
		return nil
	}
	kept := c.streams[stream]
	if kept == nil {
		kept = newHeadTail(c.limit, c.account)
		c.streams[stream] = kept
	}
	if !kept.reserve(len(p)) && c.files[stream] == nil && c.spills != nil {
		// No other goroutine changes this stream.
		earlier := kept.parts()
		c.mu.Unlock()
		file := c.spill(stream, earlier)
		c.mu.Lock()
		if c.files[stream] = file; c.closed {
			return nil
		}
	}
	if dropped := kept.write(p); dropped > 0 && kept.headMax+kept.tailMax < c.limit {
		c.account.Drop(dropped)
	}
	c.noteOrder(stream, int64(len(p)))
	return c.files[stream]
}

// noteOrder records the order of arrival.
func (c *Collector) noteOrder(stream int, n int64) {
	if c.order != nil {
		c.order.write(stream, n)
		return
	}
	if last := len(c.segments) - 1; last >= 0 && c.segments[last][0] == int64(stream) {
		c.segments[last][1] += n
	} else {
		c.segments = append(c.segments, Segment{int64(stream), n})
	}
	if len(c.segments) > maxSegments || len(c.segments) > 1 && !c.isWhole() {
		c.order = newOrder(c.limit, c.account)
		for _, s := range c.segments {
			c.order.write(int(s[0]), s[1])
		}
		c.segments = nil
	}
}

// isWhole reports whether all output is within the limit.
func (c *Collector) isWhole() bool {
	total := int64(0)
	for _, kept := range c.streams {
		if kept != nil {
			total += kept.total
			if head, tail := kept.gap(); head < tail {
				return false
			}
		}
	}
	return total <= int64(c.limit)
}

func (c *Collector) spill(stream int, earlier [][]byte) *spillFile {
	name := c.name + "-stdout"
	if stream == Stderr {
		name = c.name + "-stderr"
	}
	file := c.spills.create(name)
	for _, part := range earlier {
		file.write(part)
	}
	return file
}

// Finish ends the collection and returns the kept output, which is valid until Close. Later writes
// are dropped.
func (c *Collector) Finish() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	r := Result{StdoutSpill: c.files[Stdout].finish(), StderrSpill: c.files[Stderr].finish()}
	for stream := Stdout; stream <= Stderr; stream++ {
		if c.streams[stream] == nil {
			c.streams[stream] = newHeadTail(c.limit, c.account)
		}
	}
	r.Stdout, r.Stderr = c.streams[Stdout].counts(), c.streams[Stderr].counts()
	r.StdoutParts, r.StderrParts = c.streams[Stdout].parts(), c.streams[Stderr].parts()
	switch {
	case c.order != nil:
		view := c.order.view(c.streams)
		r.Merged, r.EachMerged = view.counts(), view.pieces
	case r.Stderr.Total == 0 && r.Stdout.Total > 0:
		r.Merged, r.Segments = r.Stdout, []Segment{{Stdout, r.Stdout.Head + r.Stdout.Tail}}
	case r.Stdout.Total == 0 && r.Stderr.Total > 0:
		r.Merged, r.Segments = r.Stderr, []Segment{{Stderr, r.Stderr.Head + r.Stderr.Tail}}
	default:
		total := r.Stdout.Total + r.Stderr.Total
		r.Merged, r.Segments = Counts{Total: total, Head: total}, append([]Segment{}, c.segments...)
	}
	return r
}

// Close releases the memory. The result of Finish must not be used afterwards.
func (c *Collector) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.streams, c.order, c.segments = [3]*headTail{}, nil, nil
	c.account.Close()
}
