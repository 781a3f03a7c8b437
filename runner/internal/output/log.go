package output

import (
	"context"
	"sync"
)

const (
	// inMemory is how much of a log is held in memory when a file has the rest.
	inMemory = 256 << 10
	// leastLog is kept however little was asked for.
	leastLog = 4 << 10
	// longMessage is delivered before its end has come: what waits for it always
	// fits beside the next piece.
	longMessage = leastLog / 2
)

// Log keeps the latest bytes of one stream of a long-lived process, by absolute
// offset: in memory, and up to MaxSpill in a file that is used as a ring. Write
// is called by one goroutine.
type Log struct {
	limit  int
	spills *Spills
	name   string

	mu        sync.Mutex
	changed   sync.Cond
	recent    []byte // the last bytes before total
	first     int64  // oldest offset that can be read
	total     int64
	file      *spillFile
	noFile    bool
	ended     bool
	closed    bool
	followers map[*Follower]struct{}
}

// NewLog keeps at least the last limit bytes (at most MaxSpill).
func NewLog(limit int, spills *Spills, name string) *Log {
	l := &Log{limit: min(max(limit, leastLog), MaxSpill), spills: spills, name: name, noFile: spills == nil,
		followers: map[*Follower]struct{}{}}
	l.changed.L = &l.mu
	return l
}

// Write appends p. While somebody follows the log it waits rather than drop
// what was not delivered.
func (l *Log) Write(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(p) > 0 && !l.closed {
		// A piece always fits beside what a follower has not read yet.
		n := min(len(p), l.memory()/2)
		l.add(p[:n])
		p = p[n:]
	}
}

func (l *Log) add(p []byte) {
	if l.file == nil && !l.noFile && l.total+int64(len(p)) > inMemory {
		l.openFile()
	}
	for !l.closed && l.wouldLose(int64(len(p))) {
		l.changed.Wait()
	}
	if l.closed {
		return
	}
	if l.file != nil {
		l.toFile(p)
	}
	l.recent = append(l.recent, p...)
	l.total += int64(len(p))
	if most := l.memory(); len(l.recent) >= 2*most {
		l.recent = append(l.recent[:0], l.recent[len(l.recent)-most:]...)
	}
	if l.file == nil {
		l.first = max(l.first, l.total-int64(min(len(l.recent), l.memory())))
	}
	l.changed.Broadcast()
}

func (l *Log) memory() int {
	if l.file != nil {
		return min(inMemory, l.limit)
	}
	if !l.noFile {
		return inMemory
	}
	return l.limit
}

// wouldLose says whether n more bytes push out some that a follower waits for.
func (l *Log) wouldLose(n int64) bool {
	room := int64(l.memory())
	if l.file != nil {
		room = MaxSpill
	}
	for f := range l.followers {
		if f.offset < l.total+n-room {
			return true
		}
	}
	return false
}

// openFile is called while everything is still in memory.
func (l *Log) openFile() {
	all := l.recent
	l.mu.Unlock()
	file := l.spills.create(l.name)
	ok := file.writeRing(0, all)
	l.mu.Lock()
	if !ok {
		l.noFile = true
		return
	}
	l.file = file
}

// toFile writes to the ring without the lock. What is overwritten is given up
// first, so that no reader takes new bytes for old ones.
func (l *Log) toFile(p []byte) {
	l.first = max(l.first, l.total+int64(len(p))-MaxSpill)
	file, at := l.file, l.total
	l.mu.Unlock()
	ok := file.writeRing(at, p)
	l.mu.Lock()
	if !ok {
		l.file, l.noFile = nil, true
	}
}

// End says that the stream is over.
func (l *Log) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.changed.Broadcast()
}

// Close ends every wait; the slot is gone.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
	if l.file != nil {
		l.file.finish()
	}
}

// Total is how many bytes there were so far, Kept how many can be read.
func (l *Log) Total() (total, kept int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.total - l.first
}

// Read returns up to limit bytes from offset (negative: from the end), where
// they really begin, and whether the stream ends after them.
func (l *Log) Read(offset int64, limit int) (data []byte, from int64, end bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < 0 {
		offset = max(0, l.total+offset)
	}
	data, from = l.read(offset, limit)
	return data, from, l.ended && from+int64(len(data)) == l.total
}

// read is called with the lock, which it gives up while it reads the file.
func (l *Log) read(offset int64, limit int) (data []byte, from int64) {
	for {
		from = min(max(offset, l.first), l.total)
		oldest := l.total - int64(len(l.recent))
		if from >= oldest || l.file == nil {
			from = max(from, oldest)
			part := l.recent[from-oldest:]
			return append([]byte(nil), part[:min(limit, len(part))]...), from
		}
		file := l.file
		buffer := make([]byte, min(int64(limit), oldest-from))
		l.mu.Unlock()
		ok := file.readRing(from, buffer)
		l.mu.Lock()
		if !ok {
			// The tenant has cut its own file short, or it made room for another.
			l.file, l.noFile = nil, true
			l.first = max(l.first, l.total-int64(len(l.recent)))
			continue
		}
		if from >= l.first {
			return buffer, from
		}
	}
}

// Follower reads a log as it grows.
type Follower struct {
	log       *Log
	delimiter *byte
	offset    int64 // everything before it was delivered
	lost      int64
}

// Follow begins at offset (negative: from the end). With a delimiter, the byte
// that ends each message, what has come of a short one waits for the rest.
func (l *Log) Follow(offset int64, delimiter *byte) *Follower {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < 0 {
		offset = max(0, l.total+offset)
	}
	f := &Follower{log: l, delimiter: delimiter, offset: max(offset, l.first)}
	f.lost = f.offset - offset
	l.followers[f] = struct{}{}
	return f
}

// Next waits for more bytes. ok is false at the end of the stream, when ctx
// ends, or when the log was closed. Delivered tells that they have arrived.
func (f *Follower) Next(ctx context.Context, limit int) (data []byte, ok bool) {
	l := f.log
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !f.due() && !l.ended && !l.closed && ctx.Err() == nil {
		l.changed.Wait()
	}
	if l.closed || ctx.Err() != nil || f.offset >= l.total {
		return nil, false
	}
	data, from := l.read(f.offset, limit)
	if from > f.offset {
		f.lost += from - f.offset
		f.offset = from
	}
	return data, true
}

// due says whether there is something to be delivered.
func (f *Follower) due() bool {
	l := f.log
	n := l.total - f.offset
	return n > 0 && (f.delimiter == nil || n >= longMessage || l.recent[len(l.recent)-1] == *f.delimiter)
}

// Delivered moves on by n bytes.
func (f *Follower) Delivered(n int) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.offset += int64(n)
	f.log.changed.Broadcast()
}

// Close ends the follower and tells where it was and what it missed.
func (f *Follower) Close() (next, lost int64) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	delete(f.log.followers, f)
	f.log.changed.Broadcast()
	return f.offset, f.lost
}
