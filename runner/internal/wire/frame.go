package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sizes of the protocol, in bytes.
const (
	HeaderSize   = 16
	MaxPayload   = 65536
	PositionSize = 8
	MaxData      = MaxPayload - PositionSize
	MaxMessage   = 32 << 20
	ReportSize   = 6 * 8 // of an answered KEEPALIVE
)

// Type is the type of a frame.
type Type uint8

// Frame types.
const (
	Hello     Type = 1
	Welcome   Type = 2
	Proof     Type = 3
	Ready     Type = 4
	Request   Type = 10
	Response  Type = 11
	Event     Type = 12
	Data      Type = 13
	End       Type = 14
	Credit    Type = 15
	Ack       Type = 16
	Cancel    Type = 17
	Resume    Type = 18
	Resumed   Type = 19
	Keepalive Type = 20
	Goodbye   Type = 21
)

// More marks a REQUEST or RESPONSE that continues in the next frame of its id.
const More uint8 = 1

// Header precedes each payload.
type Header struct {
	Length  uint32
	Type    Type
	Flags   uint8
	Channel uint16
	ID      uint64
}

// ErrProtocol is wrapped by every error about a forbidden frame.
var ErrProtocol = errors.New("protocol violation")

// shape describes the allowed form of a frame type.
type shape struct {
	min, max   uint32
	connection bool // id 0
	channel    bool
	more       bool
}

var shapes = map[Type]shape{
	Hello:     {min: 2, max: MaxPayload, connection: true},
	Welcome:   {min: 2, max: MaxPayload, connection: true},
	Proof:     {min: 2, max: MaxPayload, connection: true},
	Ready:     {min: 2, max: MaxPayload, connection: true},
	Request:   {max: MaxPayload, more: true},
	Response:  {max: MaxPayload, more: true},
	Event:     {min: PositionSize + 2, max: MaxPayload},
	Data:      {min: PositionSize, max: MaxPayload, channel: true},
	End:       {min: PositionSize, max: PositionSize, channel: true},
	Credit:    {min: PositionSize, max: PositionSize},
	Ack:       {},
	Cancel:    {},
	Resume:    {min: PositionSize, max: PositionSize},
	Resumed:   {min: PositionSize + 1, max: PositionSize + 1},
	Keepalive: {max: ReportSize, connection: true},
	Goodbye:   {min: 2, max: MaxPayload, connection: true},
}

// DecodeHeader decodes and checks a header; b must hold at least HeaderSize bytes.
func DecodeHeader(b []byte) (Header, error) {
	h := Header{
		Length:  binary.BigEndian.Uint32(b),
		Type:    Type(b[4]),
		Flags:   b[5],
		Channel: binary.BigEndian.Uint16(b[6:]),
		ID:      binary.BigEndian.Uint64(b[8:]),
	}
	s, ok := shapes[h.Type]
	switch {
	case !ok:
		return h, fmt.Errorf("%w: frame type %d", ErrProtocol, h.Type)
	case h.Length < s.min || h.Length > s.max:
		return h, fmt.Errorf("%w: %d bytes in a frame of type %d", ErrProtocol, h.Length, h.Type)
	case h.Flags&^More != 0 || h.Flags&More != 0 && !s.more:
		return h, fmt.Errorf("%w: flags %#x in a frame of type %d", ErrProtocol, h.Flags, h.Type)
	case h.Channel != 0 && !s.channel:
		return h, fmt.Errorf("%w: channel %d in a frame of type %d", ErrProtocol, h.Channel, h.Type)
	case (h.ID == 0) != s.connection:
		return h, fmt.Errorf("%w: id %d in a frame of type %d", ErrProtocol, h.ID, h.Type)
	}
	return h, nil
}

// AppendHeader appends the encoded header to dst.
func AppendHeader(dst []byte, h Header) []byte {
	dst = binary.BigEndian.AppendUint32(dst, h.Length)
	dst = append(dst, byte(h.Type), h.Flags)
	dst = binary.BigEndian.AppendUint16(dst, h.Channel)
	return binary.BigEndian.AppendUint64(dst, h.ID)
}

// AppendFrame appends a frame with its whole payload.
func AppendFrame(dst []byte, t Type, flags uint8, id uint64, payload []byte) []byte {
	dst = AppendHeader(dst, Header{Length: uint32(len(payload)), Type: t, Flags: flags, ID: id})
	return append(dst, payload...)
}

// AppendPositioned appends a DATA, EVENT, END, CREDIT or RESUME frame.
func AppendPositioned(dst []byte, t Type, channel uint16, id uint64, position int64, payload []byte) []byte {
	dst = AppendHeader(dst, Header{Length: uint32(PositionSize + len(payload)), Type: t, Channel: channel, ID: id})
	dst = binary.BigEndian.AppendUint64(dst, uint64(position))
	return append(dst, payload...)
}

// AppendResumed appends a RESUMED frame.
func AppendResumed(dst []byte, id uint64, exists bool, position int64) []byte {
	dst = AppendHeader(dst, Header{Length: PositionSize + 1, Type: Resumed, ID: id})
	var k byte
	if exists {
		k = 1
	}
	return binary.BigEndian.AppendUint64(append(dst, k), uint64(position))
}

// Position decodes the position at the beginning of a payload.
func Position(payload []byte) (int64, error) {
	if len(payload) < PositionSize {
		return 0, fmt.Errorf("%w: no position", ErrProtocol)
	}
	p := binary.BigEndian.Uint64(payload)
	if p > 1<<62 {
		return 0, fmt.Errorf("%w: position %d", ErrProtocol, p)
	}
	return int64(p), nil
}

// Reader splits a byte stream into checked frames.
type Reader struct {
	source     io.Reader
	buf        []byte
	start, end int
}

const firstBuffer = 4096

// NewReader returns a Reader of source.
func NewReader(source io.Reader) *Reader {
	// Small until a frame needs more: most connections of a hostile process never send a valid
	// frame.
	return &Reader{source: source, buf: make([]byte, firstBuffer)}
}

// Next returns the next frame. The payload is valid until the following call.
func (r *Reader) Next() (Header, []byte, error) {
	if err := r.fill(HeaderSize); err != nil {
		return Header{}, nil, err
	}
	h, err := DecodeHeader(r.buf[r.start:])
	if err != nil {
		return h, nil, err
	}
	size := HeaderSize + int(h.Length)
	if err := r.fill(size); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return h, nil, err
	}
	payload := r.buf[r.start+HeaderSize : r.start+size]
	r.start += size
	return h, payload, nil
}

// Grow makes the buffer large enough to read several full frames at once.
func (r *Reader) Grow() {
	r.resize(2 * (HeaderSize + MaxPayload))
}

func (r *Reader) resize(size int) {
	if size <= len(r.buf) {
		return
	}
	bigger := make([]byte, size)
	r.end = copy(bigger, r.buf[r.start:r.end])
	r.buf, r.start = bigger, 0
}

func (r *Reader) fill(need int) error {
	if r.end-r.start >= need {
		return nil
	}
	if need > len(r.buf) {
		r.resize(HeaderSize + MaxPayload)
	}
	if r.start == r.end {
		r.start, r.end = 0, 0
	} else if r.start+need > len(r.buf) {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	for r.end-r.start < need {
		n, err := r.source.Read(r.buf[r.end:])
		r.end += n
		if err != nil && r.end-r.start < need {
			if errors.Is(err, io.EOF) && r.end > r.start {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}
