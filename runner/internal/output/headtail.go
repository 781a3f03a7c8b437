package output

import "hermes-exec/runner/internal/budget"

// Kept says how much of a stream there was and how much of it is there:
// Total - Head - Tail bytes in between were dropped.
type Counts struct {
	Total int64 `json:"total"`
	Head  int64 `json:"head"`
	Tail  int64 `json:"tail"`
}

// bounded keeps the first 40 % and the last 60 % of limit bytes, or less where
// memory is short.
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

// reserve says whether n more bytes are kept without a loss. Where memory is
// short it makes do with what there is.
func (b *headTail) reserve(n int) bool {
	if first := min(n, b.headMax-b.head.size); !b.head.reserve(first) {
		b.headMax = b.head.size + b.head.room()
	}
	rest := n - min(n, b.headMax-b.head.size)
	if b.total+int64(n) <= int64(b.headMax+b.tailMax) && !b.tail.reserve(rest) {
		if b.tail.capacity() == 0 { // one chunk cannot be used around and around
			b.tail.account.Force(chunkSize)
			b.tail.addSpare()
		}
		b.tailMax = b.tail.capacity()
	}
	return b.total+int64(n) <= int64(b.headMax+b.tailMax)
}

// write adds p, for which memory was reserved as far as it was to be had, and
// says how many bytes were dropped.
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

// gap is where bytes are missing: those from head to tail were dropped.
func (b *headTail) gap() (head, tail int64) { return int64(b.head.size), b.total - int64(b.tail.size) }

// pieces visits the length bytes from position at of the stream on, none of
// which was dropped.
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

// parts are the kept bytes in order; they alias the buffer.
func (b *headTail) parts() [][]byte { return append(b.head.parts(), b.tail.parts()...) }

func (b *headTail) counts() Counts {
	k := Counts{Total: b.total, Head: int64(b.head.size), Tail: int64(b.tail.size)}
	if k.Head+k.Tail == k.Total {
		k.Head, k.Tail = k.Total, 0
	}
	return k
}
