package ipc

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
)

// packable is a message of every command with a binary form: JSON would take a tenth of the time of
// a short command.
//
// Not the obvious code: see docs/why-not-obvious.md ("Packed messages").
type packable interface{ pack(to []byte) []byte }

// unpackable is the counterpart of packable.
type unpackable interface{ unpack(from *bodyReader) }

func encode(value any) ([]byte, error) {
	if p, ok := value.(packable); ok {
		return p.pack(make([]byte, 0, 512)), nil
	}
	return json.Marshal(value)
}

// Decode reads the body of a message.
func Decode(body []byte, out any) error {
	u, ok := out.(unpackable)
	if !ok {
		return json.Unmarshal(body, out)
	}
	from := bodyReader{rest: body}
	u.unpack(&from)
	if from.failed || len(from.rest) > 0 {
		return errors.New("link: malformed message")
	}
	return nil
}

func (s Spawn) pack(to []byte) []byte {
	to = binary.AppendUvarint(to, s.Token)
	to = packList(to, s.Argv)
	to = binary.AppendUvarint(packList(to, s.Env), uint64(s.Base))
	to = packText(packText(to, s.Cwd), s.User)
	to = binary.AppendUvarint(to, uint64(s.HoldMS))
	if s.PTY == nil {
		return append(to, 0)
	}
	to = append(to, 1)
	return binary.AppendUvarint(binary.AppendUvarint(to, uint64(s.PTY.Rows)), uint64(s.PTY.Cols))
}

func (s *Spawn) unpack(from *bodyReader) {
	s.Token = from.number()
	s.Argv, s.Env = from.list(), from.list()
	s.Base = int(from.number())
	s.Cwd, s.User = from.text(), string(from.text())
	s.HoldMS = int(from.number())
	if from.flag() {
		s.PTY = &PTY{Rows: uint16(from.number()), Cols: uint16(from.number())}
	}
}

func (s SpawnResult) pack(to []byte) []byte {
	to = packFlag(to, s.Started)
	to = binary.AppendVarint(binary.AppendVarint(to, int64(s.PID)), int64(s.ExitCode))
	to = packFloat(packText(to, s.Reason), s.RanS)
	to = packFlag(to, s.Exit != nil)
	if s.Exit != nil {
		to = s.Exit.pack(to)
	}
	return to
}

func (s *SpawnResult) unpack(from *bodyReader) {
	s.Started = from.flag()
	s.PID, s.ExitCode = int(from.integer()), int(from.integer())
	s.Reason, s.RanS = string(from.text()), from.float()
	if from.flag() {
		s.Exit = &Exit{}
		s.Exit.unpack(from)
	}
}

func (e Exit) pack(to []byte) []byte {
	to = binary.AppendUvarint(to, e.Token)
	to = binary.AppendVarint(binary.AppendVarint(to, int64(e.ExitCode)), int64(e.Signal))
	to = packFloat(packFloat(packFlag(to, e.OOMKilled), e.UserS), e.SystemS)
	return packText(binary.AppendVarint(to, e.MaxRSS), e.Cwd)
}

func (e *Exit) unpack(from *bodyReader) {
	e.Token = from.number()
	e.ExitCode, e.Signal = int(from.integer()), int(from.integer())
	e.OOMKilled, e.UserS, e.SystemS = from.flag(), from.float(), from.float()
	e.MaxRSS, e.Cwd = from.integer(), from.text()
}

func packFlag(to []byte, set bool) []byte {
	if set {
		return append(to, 1)
	}
	return append(to, 0)
}

func packFloat(to []byte, value float64) []byte {
	return binary.BigEndian.AppendUint64(to, math.Float64bits(value))
}

func packText[T ~string](to []byte, text T) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}

func packList(to []byte, list []Bytes) []byte {
	to = binary.AppendUvarint(to, uint64(len(list)))
	for _, item := range list {
		to = packText(to, item)
	}
	return to
}

// bodyReader reads a packed body. After a failure every value is zero.
type bodyReader struct {
	rest   []byte
	failed bool
}

func (u *bodyReader) fail() { u.rest, u.failed = nil, true }

func (u *bodyReader) take(n int) []byte {
	if n > len(u.rest) {
		u.fail()
		return nil
	}
	taken := u.rest[:n]
	u.rest = u.rest[n:]
	return taken
}

// skip moves past a number of size bytes; a size of 0 or less is a failure.
func (u *bodyReader) skip(size int) {
	if size <= 0 {
		u.fail()
		return
	}
	u.take(size)
}

func (u *bodyReader) number() uint64 {
	n, size := binary.Uvarint(u.rest)
	u.skip(size)
	return n
}

func (u *bodyReader) integer() int64 {
	n, size := binary.Varint(u.rest)
	u.skip(size)
	return n
}

func (u *bodyReader) flag() bool {
	b := u.take(1)
	return len(b) == 1 && b[0] == 1
}

func (u *bodyReader) float() float64 {
	b := u.take(8)
	if len(b) < 8 {
		return 0
	}
	return math.Float64frombits(binary.BigEndian.Uint64(b))
}

func (u *bodyReader) text() Bytes {
	size := u.number()
	if size > uint64(len(u.rest)) {
		u.fail()
		return ""
	}
	return Bytes(u.take(int(size)))
}

// list reads a list of strings. Each takes at least a byte, which bounds their number.
func (u *bodyReader) list() []Bytes {
	count := u.number()
	if count > uint64(len(u.rest)) {
		u.fail()
		return nil
	}
	list := make([]Bytes, 0, min(count, 1024))
	for range count {
		list = append(list, u.text())
	}
	return list
}
