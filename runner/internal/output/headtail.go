package output

import "hermes-exec/runner/internal/budget"

// Counts are the sizes of a stream and of its kept head and tail: Total - Head - Tail bytes in
// between were dropped.
type Counts struct {
	Total int64 `json:"total"`
	Head  int64 `json:"head"`
	Tail  int64 `json:"tail"`
}

// headTail keeps the first 40 % and the last 60 % of limit bytes, or less if memory is short.
type headTail struct {
	headMax, tailMax int
	head, tail       chunkList
	total            int64
}

func newHeadTail(limit int, account *budget.Account) *headTail {
	headMax := limit * 2 / 5
	return &headTail{headMax: headMax, tailMax: limit - headMax, head: chunkList{account: account},
		tail: chunkList{account: account}}
}

// reserve reports whether n more bytes can be kept without a loss. If memory is short it lowers the
// limits.
func (b *headTail) reserve(n int) bool {
	if first := min(n, b.headMax-b.head.size); !b.head.reserve(first) {
		b.headMax = b.head.size + b.head.room()
	}
	rest := n - min(n, b.headMax-b.head.size)
	if b.total+int64(n) <= int64(b.headMax+b.tailMax) && !b.tail.reserve(rest) {
		if b.tail.capacity() == 0 { // a single chunk cannot be used as a ring
			b.tail.account.Force(chunkSize)
			b.tail.addSpare()
		}
		b.tailMax = b.tail.capacity()
	}
	return b.total+int64(n) <= int64(b.headMax+b.tailMax)
}

// write adds p, as far as memory was reserved, and returns how many bytes were dropped.
func (b *headTail) write(p []byte) (dropped int64) {
	before := int64(b.head.size + b.tail.size + len(p))
	b.total += int64(len(p))
	n := min(len(p), b.headMax-b.head.size)
	b.head.write(p[:n])
	if p = p[n:]; len(p) > b.tailMax {
		p = p[len(p)-b.tailMax:]
	}
	b.tail.trim(max(0, b.tail.size+len(p)-b.tailMax))
	b.tail.write(p)
	return before - int64(b.head.size+b.tail.size)
}

// gap returns the range of the dropped bytes: from head to tail.
func (b *headTail) gap() (head, tail int64) { return int64(b.head.size), b.total - int64(b.tail.size) }

// pieces visits length bytes of the stream from position at. None of them may have been dropped.
func (b *headTail) pieces(at, length int64, visit func(part []byte)) {
	head, tail := b.gap()
	if first := min(length, head-at); first > 0 {
		b.head.pieces(at, first, visit)
		at, length = at+first, length-first
	}
	if length > 0 {
		b.tail.pieces(at-tail, length, visit)
	}
}

// parts returns the kept bytes in order; they alias the buffer.
func (b *headTail) parts() [][]byte { return append(b.head.parts(), b.tail.parts()...) }

func (b *headTail) counts() Counts {
	k := Counts{Total: b.total, Head: int64(b.head.size), Tail: int64(b.tail.size)}
	if k.Head+k.Tail == k.Total {
		k.Head, k.Tail = k.Total, 0
	}
	return k
}
