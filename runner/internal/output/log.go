package output

import (
	"bytes"
	"context"
	"sync"

	"hermes-exec/runner/internal/budget"
)

const (
	// memorySize is how much of a log is held in memory while its stream is open, and all that is
	// kept without a file.
	memorySize = 256 << 10
	// minLog is kept even if a smaller limit was set.
	minLog = 4 << 10
	// maxHeldMessage bounds a message that waits for its end, so that it always fits beside the
	// next piece.
	maxHeldMessage = minLog / 2
)

// Log keeps the latest bytes of one stream of a long-lived process, by absolute offset: in memory,
// and up to MaxSpill in a file that is used as a ring. Write is called by one goroutine.
type Log struct {
	limit   int
	spills  *Spills
	name    string
	account *budget.Account

	mu        sync.Mutex
	changed   sync.Cond
	recent    chunkList // the last bytes before total
	maxRecent int       // how many of them may be held
	last      byte
	first     int64 // oldest offset that can be read
	total     int64
	file      *spillFile
	noFile    bool
	ended     bool
	closed    bool
	followers map[*Follower]struct{}
}

// NewLog keeps at least the last limit bytes (at most MaxSpill) if there is room for a file, else
// the last 256 KiB.
func NewLog(limit int, spills *Spills, name string, memory *budget.Budget) *Log {
	account := memory.Open()
	l := &Log{limit: min(max(limit, minLog), MaxSpill), spills: spills, name: name, noFile: spills == nil,
		account: account, recent: chunkList{account: account}, followers: map[*Follower]struct{}{}}
	l.changed.L = &l.mu
	return l
}

// Write appends p. While a follower reads the log, it waits rather than drop bytes that were not
// delivered.
func (l *Log) Write(p []byte) {
	for len(p) > 0 {
		n, roomy := l.reserve(len(p))
		if !l.add(p[:n], roomy) {
			return
		}
		p = p[n:]
	}
}

// reserve returns how many of n bytes to add next, and whether there is memory for them in addition
// to the held bytes. A piece always fits beside the bytes that a follower has not read yet. It
// holds no lock, because others may lose bytes for it.
func (l *Log) reserve(n int) (piece int, roomy bool) {
	l.mu.Lock()
	n = min(n, l.memory()/2)
	enough := l.recent.room() >= n
	l.mu.Unlock()
	if enough {
		return n, true
	}
	if !l.account.Reserve(chunkSize) {
		return min(n, chunkSize/2), false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.account.Release(chunkSize)
	} else {
		l.recent.addSpare()
	}
	return n, true
}

// add appends a piece. If memory is short, older bytes make room for it.
func (l *Log) add(p []byte, roomy bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil && !l.noFile && !l.closed && (l.total+int64(len(p)) > memorySize || !roomy) {
		l.openFile()
	}
	if l.maxRecent = l.memory(); l.file != nil {
		l.maxRecent += l.maxRecent / 2 // fewer reads of the file by followers
	}
	if !roomy {
		l.maxRecent = min(l.maxRecent, max(l.recent.capacity(), chunkSize))
	}
	for !l.closed && l.wouldLose(int64(len(p))) {
		l.changed.Wait()
	}
	if l.closed {
		return false
	}
	if l.file != nil {
		l.writeToFile(p)
	}
	if l.closed {
		return false
	}
	l.recent.trim(max(0, l.recent.size+len(p)-l.maxRecent))
	l.recent.write(p)
	l.total += int64(len(p))
	l.last = p[len(p)-1]
	l.forgetOlder()
	l.changed.Broadcast()
	return true
}

// forgetOlder is called when bytes may have been dropped that no file has.
func (l *Log) forgetOlder() {
	if l.file == nil {
		l.first = max(l.first, l.total-int64(l.recent.size))
	}
}

// memory returns how many bytes are held in memory, unless memory is short.
func (l *Log) memory() int {
	if l.noFile || l.file != nil {
		return min(memorySize, l.limit)
	}
	return memorySize
}

// wouldLose reports whether n more bytes push out bytes that a follower waits for.
func (l *Log) wouldLose(n int64) bool {
	room := int64(l.maxRecent)
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
	all := l.recent.parts()
	l.mu.Unlock()
	file := l.spills.create(l.name)
	ok, at := true, int64(0)
	for _, part := range all {
		ok = ok && file.writeRing(at, part)
		at += int64(len(part))
	}
	l.mu.Lock()
	if l.closed {
		file.finish()
		return
	}
	if !ok || !file.isOpen() {
		l.noFile = true
		return
	}
	l.file = file
}

// writeToFile writes to the ring without the lock. It first gives up the bytes that it overwrites,
// so that no reader takes new bytes for old ones.
func (l *Log) writeToFile(p []byte) {
	l.first = max(l.first, l.total+int64(len(p))-MaxSpill)
	file, at := l.file, l.total
	l.mu.Unlock()
	ok := file.writeRing(at, p)
	l.mu.Lock()
	if !ok && l.file == file {
		l.file, l.noFile = nil, true
		l.forgetOlder()
	}
}

// Shrink releases the memory of bytes that a file has too, and returns how much it was.
func (l *Log) Shrink() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return 0
	}
	return l.empty()
}

func (l *Log) empty() int64 {
	before := l.account.Balance()
	l.recent.clear()
	return before - l.account.Balance()
}

// Memory returns how much memory the log takes.
func (l *Log) Memory() int64 { return l.account.Balance() }

// DropOutput releases all memory of an ended stream, and returns how much it was. Bytes that no
// file has are lost.
func (l *Log) DropOutput() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		return 0
	}
	if l.file == nil {
		l.account.Drop(int64(l.recent.size))
	}
	freed := l.empty()
	l.forgetOlder()
	return freed
}

// End marks the end of the stream.
func (l *Log) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.file != nil {
		l.file.end()
		l.empty()
	}
	l.recent.releaseSpares()
	l.changed.Broadcast()
}

// CloseFile gives up the file: its last bytes stay in memory.
func (l *Log) CloseFile() {
	l.mu.Lock()
	file := l.file
	if file == nil || l.closed {
		l.mu.Unlock()
		return
	}
	last := make([]byte, min(l.total-l.first, int64(min(memorySize, l.limit))))
	kept := file.readRing(l.total-int64(len(last)), last)
	l.empty()
	if kept && l.recent.reserve(len(last)) {
		l.recent.write(last)
	}
	l.file, l.noFile = nil, true
	l.forgetOlder()
	l.mu.Unlock()
	file.remove()
}

// Close ends every wait and frees the memory.
func (l *Log) Close() { l.close() }

// Discard closes a log that nobody can read any more, and removes its file.
func (l *Log) Discard() {
	if file := l.close(); file != nil {
		file.remove()
	}
}

func (l *Log) close() *spillFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
	if l.file != nil {
		l.file.finish()
	}
	l.recent, l.first = chunkList{account: l.account}, l.total
	l.account.Close()
	return l.file
}

// Total returns the size of the stream so far, and how many bytes can be read.
func (l *Log) Total() (total, kept int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.total - l.first
}

// Read returns up to limit bytes from offset (negative: from the end), their real offset, and
// whether the stream ends after them.
func (l *Log) Read(offset int64, limit int) (data []byte, from int64, end bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < 0 {
		offset = max(0, l.total+offset)
	}
	data, from = l.read(offset, limit)
	return data, from, l.ended && from+int64(len(data)) == l.total
}

// read is called with the lock, which it releases while it reads the file.
func (l *Log) read(offset int64, limit int) (data []byte, from int64) {
	for {
		from = min(max(offset, l.first), l.total)
		oldest := l.total - int64(l.recent.size)
		if from >= oldest || l.file == nil {
			from = max(from, oldest)
			var parts [][]byte
			l.recent.pieces(from-oldest, min(int64(limit), l.total-from), func(part []byte) {
				parts = append(parts, part)
			})
			return bytes.Join(parts, nil), from
		}
		file := l.file
		buffer := make([]byte, min(int64(limit), oldest-from))
		l.mu.Unlock()
		ok := file.readRing(from, buffer)
		l.mu.Lock()
		if !ok {
			// The tenant has truncated its own file, or it made room for another.
			l.file, l.noFile = nil, true
			l.forgetOlder()
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

// Follow begins at offset (negative: from the end). With a delimiter, the byte that ends each
// message, the beginning of a short message waits for its end.
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

// Next waits for more bytes. ok is false at the end of the stream, when ctx ends, or when the log
// was closed. Advance confirms that the bytes have arrived.
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
	for !f.isDue() && !l.ended && !l.closed && ctx.Err() == nil {
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

// isDue reports whether there is something to deliver.
func (f *Follower) isDue() bool {
	l := f.log
	n := l.total - f.offset
	return n > 0 && (f.delimiter == nil || n >= maxHeldMessage || l.last == *f.delimiter)
}

// Advance moves on by n bytes.
func (f *Follower) Advance(n int) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.offset += int64(n)
	f.log.changed.Broadcast()
}

// Close ends the follower and returns its position and how many bytes it missed.
func (f *Follower) Close() (next, lost int64) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	delete(f.log.followers, f)
	f.log.changed.Broadcast()
	return f.offset, f.lost
}
