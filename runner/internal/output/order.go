package output

import (
	"math/bits"

	"hermes-exec/runner/internal/budget"
)

// minOrder is the number of bytes whose order is kept even if memory is short.
const minOrder = 64 << 10

// order is the order in which the bytes of two streams arrived: one bit for each of the first 40 %
// and the last 60 %, which is 1 for Stderr.
type order struct {
	headMax, tailMax int64
	bits             []uint64
	total            int64
}

func newOrder(limit int, account *budget.Account) *order {
	size := int64(limit+63) / 64 * 8
	if !account.Reserve(size) {
		limit = min(limit, minOrder)
		size = int64(limit+63) / 64 * 8
		account.Force(size)
	}
	headMax := int64(limit) * 2 / 5
	return &order{headMax: headMax, tailMax: int64(limit) - headMax, bits: make([]uint64, size/8)}
}

// write records that the next n bytes are of a stream.
func (o *order) write(stream int, n int64) {
	if first := min(n, o.headMax-o.total); first > 0 {
		o.fill(stream, o.total, first)
		o.total, n = o.total+first, n-first
	}
	if skip := n - o.tailMax; skip > 0 {
		o.total, n = o.total+skip, n-skip
	}
	for n > 0 {
		at := o.bitIndex(o.total)
		some := min(n, o.headMax+o.tailMax-at)
		o.fill(stream, at, some)
		o.total, n = o.total+some, n-some
	}
}

// bitIndex returns the bit for a position.
func (o *order) bitIndex(position int64) int64 {
	if position < o.headMax {
		return position
	}
	return o.headMax + (position-o.headMax)%o.tailMax
}

func (o *order) fill(stream int, at, n int64) {
	for n > 0 {
		offset := at % 64
		some := min(n, 64-offset)
		mask := ^uint64(0) >> (64 - some) << offset
		if stream == Stderr {
			o.bits[at/64] |= mask
		} else {
			o.bits[at/64] &^= mask
		}
		at, n = at+some, n-some
	}
}

// run returns how many bytes from a position on, at most n, are of one stream.
func (o *order) run(position, n int64) (stream int, length int64) {
	at := o.bitIndex(position)
	end := o.headMax
	if position >= o.headMax {
		end += o.tailMax
	}
	n = min(n, end-at)
	stream = Stdout + int(o.bits[at/64]>>(at%64)&1)
	for length < n {
		word := o.bits[at/64] >> (at % 64)
		if stream == Stderr {
			word = ^word
		}
		same := min(int64(bits.TrailingZeros64(word)), 64-at%64, n-length)
		length, at = length+same, at+same
		if at%64 != 0 && length < n {
			break
		}
		if length < n && Stdout+int(o.bits[at/64]&1) != stream {
			break
		}
	}
	return stream, length
}

// runs visits the runs of the n bytes from a position on.
func (o *order) runs(position, n int64, visit func(stream int, length int64)) {
	for n > 0 {
		stream, length := o.run(position, n)
		visit(stream, length)
		position, n = position+length, n-length
	}
}

// mergedView is the part of the merged output that can be put together: the first and the last
// bytes, as far as the streams have kept theirs.
type mergedView struct {
	order      *order
	streams    [3]*headTail
	head, tail int64 // how many bytes
	at         [3]int64
}

func (o *order) view(streams [3]*headTail) mergedView {
	v := mergedView{order: o, streams: streams, head: min(o.total, o.headMax)}
	v.tail = min(o.total-v.head, o.tailMax)
	var at [3]int64
	short := false
	o.runs(0, v.head, func(stream int, length int64) {
		if short {
			return
		}
		if gap, tail := streams[stream].gap(); at[stream]+length > gap && gap < tail {
			short = true
			length = max(0, gap-at[stream])
			v.head = length + at[Stdout] + at[Stderr]
			return
		}
		at[stream] += length
	})
	var counts [3]int64
	o.runs(o.total-v.tail, v.tail, func(stream int, length int64) { counts[stream] += length })
	for stream := Stdout; stream <= Stderr; stream++ {
		at[stream] = streams[stream].total - counts[stream]
	}
	v.at = at
	passed := int64(0)
	cut, cutAt := int64(0), at
	o.runs(o.total-v.tail, v.tail, func(stream int, length int64) {
		from := at[stream]
		at[stream] += length
		passed += length
		if gap, tail := streams[stream].gap(); gap < tail && at[stream] > gap && from < tail {
			missing := min(at[stream], tail) // the first byte after the last missing byte
			cut, cutAt = passed-(at[stream]-missing), at
			cutAt[stream] = missing
		}
	})
	v.tail, v.at = v.tail-cut, cutAt
	return v
}

func (v mergedView) counts() Counts {
	k := Counts{Total: v.order.total, Head: v.head, Tail: v.tail}
	if k.Head+k.Tail == k.Total {
		k.Head, k.Tail = k.Total, 0
	}
	return k
}

// pieces visits the bytes in order.
func (v mergedView) pieces(visit func(part []byte)) {
	at := [3]int64{}
	some := func(stream int, length int64) {
		v.streams[stream].pieces(at[stream], length, visit)
		at[stream] += length
	}
	v.order.runs(0, v.head, some)
	at = v.at
	v.order.runs(v.order.total-v.tail, v.tail, some)
}
