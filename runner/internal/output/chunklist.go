package output

import "hermes-exec/runner/internal/budget"

// chunkSize is the growth once a list has that many bytes, so that nothing is copied again.
const chunkSize = 64 << 10

// chunkList is a list of bytes in chunks whose front can be removed. Its memory belongs to an
// account.
//
// Not the obvious code: see docs/why-not-obvious.md ("Output in pieces").
type chunkList struct {
	account *budget.Account
	chunks  [][]byte
	start   int // offset of the first byte in the first chunk
	size    int
	spares  [][]byte // empty chunks
}

// room returns how many bytes can be added without another chunk.
func (c *chunkList) room() int {
	room := len(c.spares) * chunkSize
	if last := len(c.chunks) - 1; last >= 0 {
		return room + chunkSize - len(c.chunks[last])
	}
	return max(room, chunkSize) // the first chunk grows as it is used
}

// capacity returns how many bytes fit wherever in a chunk they begin.
func (c *chunkList) capacity() int { return (max(1, len(c.chunks)+len(c.spares)) - 1) * chunkSize }

// reserve reserves memory for n more bytes, and returns false if there is not enough.
func (c *chunkList) reserve(n int) bool {
	for c.room() < n {
		if !c.account.Reserve(chunkSize) {
			return false
		}
		c.addSpare()
	}
	return true
}

func (c *chunkList) addSpare() { c.spares = append(c.spares, make([]byte, 0, chunkSize)) }

// write adds p, even if its memory was not reserved.
func (c *chunkList) write(p []byte) {
	c.size += len(p)
	for len(p) > 0 {
		last := len(c.chunks) - 1
		if last < 0 || len(c.chunks[last]) == chunkSize {
			c.extend()
			last++
		}
		n := min(len(p), chunkSize-len(c.chunks[last]))
		c.grow(last, n)
		c.chunks[last] = append(c.chunks[last], p[:n]...)
		p = p[n:]
	}
}

func (c *chunkList) extend() {
	if len(c.spares) == 0 {
		if len(c.chunks) == 0 {
			c.chunks = append(c.chunks, nil)
			return
		}
		c.account.Force(chunkSize)
		c.addSpare()
	}
	last := len(c.spares) - 1
	c.chunks, c.spares = append(c.chunks, c.spares[last]), c.spares[:last]
}

// grow makes a chunk large enough for n more bytes: the first chunk is small as long as it has few.
func (c *chunkList) grow(at, n int) {
	chunk := c.chunks[at]
	if need := len(chunk) + n; need > cap(chunk) {
		larger := make([]byte, len(chunk), min(chunkSize, max(need, 2*cap(chunk))))
		copy(larger, chunk)
		c.account.Force(int64(cap(larger) - cap(chunk)))
		c.chunks[at] = larger
	}
}

// trim removes n bytes at the front.
func (c *chunkList) trim(n int) {
	n = min(n, c.size)
	c.size -= n
	c.start += n
	gone := 0
	for gone < len(c.chunks) && c.start >= len(c.chunks[gone]) {
		c.start -= len(c.chunks[gone])
		if cap(c.chunks[gone]) == chunkSize {
			c.spares = append(c.spares, c.chunks[gone][:0])
		} else {
			c.account.Release(int64(cap(c.chunks[gone])))
		}
		gone++
	}
	c.chunks = append(c.chunks[:0], c.chunks[gone:]...)
}

// releaseSpares releases the memory of empty chunks.
func (c *chunkList) releaseSpares() {
	c.account.Release(int64(len(c.spares) * chunkSize))
	c.spares = nil
}

// clear removes everything and releases the memory.
func (c *chunkList) clear() {
	for _, all := range [][][]byte{c.chunks, c.spares} {
		for _, chunk := range all {
			c.account.Release(int64(cap(chunk)))
		}
	}
	*c = chunkList{account: c.account}
}

// pieces visits length bytes from position at.
func (c *chunkList) pieces(at, length int64, visit func(part []byte)) {
	at += int64(c.start)
	// All chunks except the last are full. A short first chunk is also the last.
	for length > 0 {
		chunk := c.chunks[at/chunkSize][at%chunkSize:]
		chunk = chunk[:min(int64(len(chunk)), length)]
		visit(chunk)
		at += int64(len(chunk))
		length -= int64(len(chunk))
	}
}

// parts returns all bytes in order; they alias the chunks.
func (c *chunkList) parts() (parts [][]byte) {
	c.pieces(0, int64(c.size), func(part []byte) { parts = append(parts, part) })
	return parts
}
