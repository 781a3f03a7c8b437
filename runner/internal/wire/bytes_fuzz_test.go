package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

func FuzzBytes(f *testing.F) {
	for _, seed := range []string{`"plain"`, `{"b64":"/w=="}`, `{"b64":"AA=="}`, `"\u0000"`, `"\ud800"`, `{}`, `null`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		var value, again Bytes
		if json.Unmarshal(input, &value) != nil {
			return
		}
		if strings.IndexByte(string(value), 0) >= 0 {
			t.Fatal("a NUL byte came through")
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(encoded, &again); err != nil || again != value {
			t.Fatalf("%q became %q, %v", value, again, err)
		}
	})
}
