package proc

import (
	"strings"
	"testing"
	"testing/iotest"
)

func TestFindEntry(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct {
		environ string
		want    string // found; empty: none
	}{
		"first": {"K=1\x00A=2\x00", "1"}, "last, without an end": {"A=2\x00K=3", "3"}, "none": {"A=K=1\x00KK=2\x00", ""},
		"empty": {"", ""}, "refused": {"K=no\x00K=5\x00", "5"}, "behind a long one": {"A=" + long + "\x00K=4\x00", "4"},
		"inside of a long one": {"A=" + strings.Repeat("x", 16<<10-2) + "K=4\x00", ""},
		"no end anywhere":      {long, ""}, "nothing but ends": {strings.Repeat("\x00", 50_000) + "K=6", "6"},
	} {
		for _, whole := range []bool{true, false} {
			r := strings.NewReader(c.environ)
			got := ""
			accept := func(value string) bool { got = value; return value != "no" }
			found := findEntry(r, "K=", accept)
			if !whole {
				_, _ = r.Seek(0, 0)
				found = findEntry(iotest.OneByteReader(r), "K=", accept)
			}
			if found != (c.want != "") || found && got != c.want {
				t.Errorf("%s: found %v %q", name, found, got)
			}
		}
	}
}
