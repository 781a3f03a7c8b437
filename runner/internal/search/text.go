package search

import (
	"bytes"
	"encoding/binary"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// The rules by which bytes are text are those of the tool read_file (hermes_exec/tools/files/textfile.py),
// so that a search finds the text that it shows.

const (
	// sniffBytes is how much of a file decides whether it is text.
	sniffBytes     = 8 << 10
	utf16MarkBytes = 2
)

var utf8Mark = []byte("\xef\xbb\xbf")

// sniff looks at the start of a file. It returns the byte order of UTF-16 with a mark. A file with a
// NUL character is binary.
func sniff(start []byte) (order binary.ByteOrder, isBinary bool) {
	start = start[:min(len(start), sniffBytes)]
	switch {
	case bytes.HasPrefix(start, []byte("\xff\xfe")):
		order = binary.LittleEndian
	case bytes.HasPrefix(start, []byte("\xfe\xff")):
		order = binary.BigEndian
	default:
		return nil, bytes.IndexByte(start, 0) >= 0
	}
	for i := 0; i+1 < len(start); i += 2 {
		if start[i] == 0 && start[i+1] == 0 {
			return order, true
		}
	}
	return order, false
}

// toText returns lines as UTF-8. A line that is not UTF-8 is Latin-1, unless a part of it that is not
// ASCII is valid UTF-8: then U+FFFD stands for each invalid byte. It also stands for NUL. The result
// is valid until the next call.
func (s *scanner) toText(lines []byte) []byte {
	if utf8.Valid(lines) && bytes.IndexByte(lines, 0) < 0 {
		return lines
	}
	s.decoded = s.decoded[:0]
	for line := range bytes.Lines(lines) {
		isLatin := isLatin1(line)
		for len(line) > 0 {
			r, n := utf8.DecodeRune(line)
			if r == 0 {
				r = utf8.RuneError
			} else if isLatin {
				r = rune(line[0])
			}
			s.decoded = utf8.AppendRune(s.decoded, r)
			line = line[n:]
		}
	}
	return s.decoded
}

func isASCII(text []byte) bool {
	return !bytes.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
}

func isLatin1(line []byte) bool {
	invalid := false
	for len(line) > 0 {
		r, n := utf8.DecodeRune(line)
		if n > 1 {
			return false
		}
		invalid = invalid || r == utf8.RuneError
		line = line[n:]
	}
	return invalid
}

// utf16Reader reads UTF-16 as UTF-8. U+FFFD stands for half of a surrogate pair.
type utf16Reader struct {
	in    io.Reader
	order binary.ByteOrder
	raw   []byte // not yet decoded
	text  []byte
	at    int // how much of text is returned
	err   error
}

func newUTF16Reader(order binary.ByteOrder, start []byte, in io.Reader) *utf16Reader {
	r := &utf16Reader{in: in, order: order, raw: append(make([]byte, 0, max(len(start), blockSize)), start...)}
	r.decode()
	return r
}

func (r *utf16Reader) Read(p []byte) (int, error) {
	for r.at == len(r.text) {
		if r.err != nil {
			return 0, r.err
		}
		var n int
		n, r.err = r.in.Read(r.raw[len(r.raw):cap(r.raw)])
		r.raw = r.raw[:len(r.raw)+n]
		r.decode()
	}
	n := copy(p, r.text[r.at:])
	r.at += n
	return n, nil
}

// decode turns whole characters of raw into text.
func (r *utf16Reader) decode() {
	r.text, r.at = r.text[:0], 0
	i := 0
	for i+2 <= len(r.raw) {
		c := rune(r.order.Uint16(r.raw[i:]))
		if utf16.IsSurrogate(c) {
			if c < 0xdc00 && i+4 > len(r.raw) {
				break // its other half is not here yet
			}
			pair := rune(utf8.RuneError)
			if c < 0xdc00 {
				pair = utf16.DecodeRune(c, rune(r.order.Uint16(r.raw[i+2:])))
			}
			if c = pair; c != utf8.RuneError {
				i += 2
			}
		}
		r.text = utf8.AppendRune(r.text, c)
		i += 2
	}
	r.raw = r.raw[:copy(r.raw, r.raw[i:])]
}
