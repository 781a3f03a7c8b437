package search

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"unicode/utf8"

	"hermes-exec/runner/internal/ipc"
)

const (
	blockSize = 256 << 10
	// maxLineBytes is the most of one line that is matched at once. A longer line is matched in
	// overlapping pieces.
	maxLineBytes = 4 << 20
	lineOverlap  = 64 << 10
	// maxKept bounds the text of one file's matches.
	maxKept = 4 << 20
)

// scanner finds the matching lines of one file in one pass. It keeps those with an index from
// keepFrom up to keepTo, and counts all.
type scanner struct {
	ctx      context.Context
	find     finder
	prefix   []byte // every match starts with it; empty: unknown
	context  int
	maxLine  int
	keepFrom int
	keepTo   int
	// keepsReturn keeps the CR at the end of a line, for a pattern that looks for it.
	keepsReturn bool

	count    int
	kept     []Match
	keptSize int
	full     bool // a match was not kept for lack of room
	line     int
	before   []ipc.Bytes
	binary   bool
	decoded  []byte // room for lines that are not UTF-8
}

// scan reads to the end, into the empty block and, for longer lines, into larger blocks; it copies
// the matches.
func (s *scanner) scan(in io.Reader, block []byte) error {
	in = WithContext(s.ctx, in)
	buffer := block
	least := sniffBytes // at first
	for {
		if len(buffer) == cap(buffer) {
			if cap(buffer) >= maxLineBytes {
				rest, err := s.longLine(buffer, in)
				if err != nil {
					return err
				}
				buffer = append(buffer[:0], rest...)
				continue
			}
			grown := make([]byte, len(buffer), 2*cap(buffer))
			copy(grown, buffer)
			buffer = grown
		}
		n, err := io.ReadAtLeast(in, buffer[len(buffer):cap(buffer)], least)
		buffer = buffer[:len(buffer)+n]
		if least > 1 {
			least = 1
			var order binary.ByteOrder
			if order, s.binary = sniff(buffer); s.binary {
				return nil
			}
			if order != nil {
				in = newUTF16Reader(order, buffer[utf16MarkBytes:], in)
				buffer = buffer[:0]
				continue
			}
			buffer = buffer[:copy(buffer, bytes.TrimPrefix(buffer, utf8Mark))]
		}
		if end := bytes.LastIndexByte(buffer, '\n') + 1; end > 0 {
			s.block(buffer[:end])
			buffer = buffer[:copy(buffer, buffer[end:])]
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			s.block(buffer)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// block scans lines. If the pattern starts with literal text and no context is wanted, lines
// without that text are only counted.
func (s *scanner) block(data []byte) {
	if !isASCII(s.prefix) {
		data = s.toText(data) // the prefix may have other bytes in the file
	}
	// A line can take long with a large pattern; the next read reports the cancel.
	for len(data) > 0 && s.ctx.Err() == nil {
		if len(s.prefix) > 0 && s.context == 0 {
			at := bytes.Index(data, s.prefix)
			if at < 0 {
				s.line += bytes.Count(data, []byte{'\n'})
				return
			}
			start := bytes.LastIndexByte(data[:at], '\n') + 1
			s.line += bytes.Count(data[:start], []byte{'\n'})
			data = data[start:]
		}
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			end = len(data) - 1
		}
		s.oneLine(data[:end+1])
		data = data[end+1:]
	}
}

func (s *scanner) oneLine(raw []byte) {
	text := bytes.TrimSuffix(s.toText(raw), []byte{'\n'})
	if !s.keepsReturn {
		text = bytes.TrimSuffix(text, []byte{'\r'})
	}
	s.endLine(text, s.find(text))
}

// endLine counts the line and keeps it if it matches; at is where, or -1.
func (s *scanner) endLine(text []byte, at int) {
	s.line++
	if s.context > 0 {
		s.after(text)
	}
	if at >= 0 {
		if s.count >= s.keepFrom && s.count < s.keepTo {
			s.keep(text, at+1)
		}
		s.count++
	}
	if s.context > 0 {
		if len(s.before) == s.context {
			s.before = append(s.before[:0], s.before[1:]...)
		}
		s.before = append(s.before, s.cut(text))
	}
}

func (s *scanner) keep(text []byte, column int) {
	if s.full || s.keptSize > maxKept {
		s.full = true
		return
	}
	m := Match{Line: s.line, Column: column, Text: s.cut(text), Before: append([]ipc.Bytes{}, s.before...),
		After: []ipc.Bytes{}}
	s.keptSize += len(m.Text)*2 + 64
	for _, b := range m.Before {
		s.keptSize += len(b)
	}
	s.kept = append(s.kept, m)
}

// after adds the line to the kept matches that still need lines after them.
func (s *scanner) after(text []byte) {
	for i := len(s.kept) - 1; i >= 0 && s.line-s.kept[i].Line <= s.context; i-- {
		cut := s.cut(text)
		s.keptSize += len(cut)
		s.kept[i].After = append(s.kept[i].After, cut)
	}
}

// cut shortens a line without splitting a character.
func (s *scanner) cut(text []byte) ipc.Bytes {
	if len(text) <= s.maxLine {
		return ipc.Bytes(text)
	}
	end := s.maxLine
	for end > 0 && end > s.maxLine-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return ipc.Bytes(text[:end])
}

// longLine matches a line that does not fit into the buffer, in overlapping pieces, and counts it
// once. It returns the bytes after the line.
func (s *scanner) longLine(buffer []byte, in io.Reader) (rest []byte, err error) {
	text := s.toText(buffer)
	at := s.find(text)
	head := append([]byte(nil), text[:min(len(text), s.maxLine+1)]...)
	base, piece := 0, buffer
	for {
		// The overlap is longer than a match of a fixed pattern, and than any useful one.
		keep := min(len(piece), lineOverlap)
		base += len(piece) - keep
		copy(piece, piece[len(piece)-keep:])
		n, readErr := io.ReadFull(in, piece[keep:cap(piece)])
		fresh := piece[keep : keep+n]
		end := bytes.IndexByte(fresh, '\n')
		line := piece[:keep+n]
		if end >= 0 {
			line = piece[:keep+end]
		}
		if at < 0 {
			if hit := s.find(s.toText(line)); hit >= 0 {
				at = base + hit
			}
		}
		if end >= 0 || readErr != nil {
			s.endLine(head, at)
			if end >= 0 {
				rest = append(rest, fresh[end+1:]...)
			}
			if readErr == io.EOF || readErr == io.ErrUnexpectedEOF {
				readErr = nil // the next read returns the end again
			}
			return rest, readErr
		}
		piece = line
	}
}
