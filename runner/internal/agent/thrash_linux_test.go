package agent

import (
	"testing"

	"hermes-exec/runner/internal/isolate"
)

// looks is how many of so many looks say that it goes on for too long; each
// finds so much more read again, and so many more waits.
func looks(n int, cache, refaults, faults int64) (said int) {
	var t thrash
	at := isolate.Paging{Cache: cache, Refaults: 1 << 40, Faults: 1 << 20}
	for range n {
		if t.look(at, 160<<20) {
			said++
		}
		at.Refaults += refaults
		at.Faults += faults
	}
	return said
}

func TestThrash(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		what                    string
		cache, refaults, faults int64
		want                    int // of ten looks
	}{
		{"as seen on a fast disk", 1 * mib, 340 * mib, 320, 4},
		{"on a slow one", 1 * mib, 4 * mib, 8, 4},
		{"nothing is left at all", 0, 300 << 10, 8, 4},
		{"nothing happens", 1 * mib, 0, 0, 0},
		{"a table of 500 MiB that is read by way of memory", 500 * mib, 150 * mib, 1000, 0},
		{"a file that is read by way of memory again and again, in 8 MiB", 8 * mib, 400 * mib, 1000, 0},
		{"a stream of files, and no program waits for its own", 1 * mib, 300 * mib, 0, 0},
		{"a few pages of an idle program", 1 * mib, 64 << 10, 3, 0},
	} {
		if got := looks(10, c.cache, c.refaults, c.faults); got != c.want {
			t.Errorf("%s: %d, not %d", c.what, got, c.want)
		}
	}
}

func TestThrashMustGoOnWithoutAPause(t *testing.T) {
	var th thrash
	at := isolate.Paging{Cache: 1 << 20}
	for i := range 100 {
		if th.look(at, 160<<20) {
			t.Fatalf("at look %d", i)
		}
		if i%thrashLooks != 0 {
			at.Refaults += 100 << 20
			at.Faults += 100
		}
	}
}
