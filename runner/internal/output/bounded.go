// Package output keeps what commands print: bounded head and tail, the order
// of arrival of two streams, the whole stream in a spill file, and a log that
// is read by absolute offset.
package output

// Kept says how much of a stream there was and how much of it is there:
// Total - Head - Tail bytes in between were dropped.
type Kept struct {
	Total int64 `json:"total"`
	Head  int64 `json:"head"`
	Tail  int64 `json:"tail"`
}

// bounded keeps the first 40 % and the last 60 % of limit bytes.
type bounded struct {
	headMax, tailMax int
	head             []byte
	tail             []byte // a ring once it is full; start is its oldest byte
	start            int
	total            int64
}

func newBounded(limit int) *bounded {
	headMax := limit * 2 / 5
	return &bounded{headMax: headMax, tailMax: limit - headMax}
}

func (b *bounded) write(p []byte) {
	b.total += int64(len(p))
	if room := b.headMax - len(b.head); room > 0 {
		n := min(room, len(p))
		b.head = append(b.head, p[:n]...)
		p = p[n:]
	}
	if len(p) >= b.tailMax {
		b.tail = append(b.tail[:0], p[len(p)-b.tailMax:]...)
		b.start = 0
		return
	}
	if room := b.tailMax - len(b.tail); room > 0 {
		n := min(room, len(p))
		b.tail = append(b.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(b.tail[b.start:], p)
		p = p[n:]
		if b.start += n; b.start == len(b.tail) {
			b.start = 0
		}
	}
}

func (b *bounded) clone() *bounded {
	c := *b
	c.head, c.tail = append([]byte(nil), b.head...), append([]byte(nil), b.tail...)
	return &c
}

// parts are the kept bytes in order; they alias the buffer.
func (b *bounded) parts() [][]byte {
	return [][]byte{b.head, b.tail[b.start:], b.tail[:b.start]}
}

func (b *bounded) kept() Kept {
	k := Kept{Total: b.total, Head: int64(len(b.head)), Tail: int64(len(b.tail))}
	if k.Head+k.Tail == k.Total {
		k.Head, k.Tail = k.Total, 0
	}
	return k
}
