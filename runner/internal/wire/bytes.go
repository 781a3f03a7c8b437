package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// Bytes is a byte string. In JSON it is a string if it is valid UTF-8, and {"b64": "..."}
// otherwise. It never contains a NUL byte after decoding.
type Bytes string

// ErrNUL is returned if a decoded value contains a NUL byte, which no path, argument or environment
// entry can contain.
var ErrNUL = errors.New("value holds a NUL byte")

type encoded struct {
	B64 []byte `json:"b64"`
}

// MarshalJSON implements json.Marshaler.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(b)) {
		return json.Marshal(string(b))
	}
	return json.Marshal(encoded{B64: []byte(b)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var value string
	if len(data) > 0 && data[0] == '{' {
		var e encoded
		if err := json.Unmarshal(data, &e); err != nil {
			return err
		}
		value = string(e.B64)
	} else if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	if strings.IndexByte(value, 0) >= 0 {
		return ErrNUL
	}
	*b = Bytes(value)
	return nil
}
