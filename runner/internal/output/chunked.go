package output

// chunkSize is what is added at a time once that much is there: nothing is
// copied again for growing.
const chunkSize = 64 << 10

// chunked is bytes in pieces.
type chunked struct {
	chunks [][]byte
	size   int
}

func (c *chunked) write(p []byte) {
	c.size += len(p)
	for len(p) > 0 {
		last := len(c.chunks) - 1
		if last < 0 || len(c.chunks[last]) == chunkSize {
			var next []byte
			if last >= 0 {
				next = make([]byte, 0, chunkSize)
			}
			c.chunks = append(c.chunks, next)
			last++
		}
		n := min(len(p), chunkSize-len(c.chunks[last]))
		c.chunks[last] = append(c.chunks[last], p[:n]...)
		p = p[n:]
	}
}

// pieces visits the length bytes from position at on.
func (c *chunked) pieces(at, length int64, visit func(part []byte)) {
	for length > 0 {
		chunk := c.chunks[at/chunkSize][at%chunkSize:]
		chunk = chunk[:min(int64(len(chunk)), length)]
		visit(chunk)
		at += int64(len(chunk))
		length -= int64(len(chunk))
	}
}
