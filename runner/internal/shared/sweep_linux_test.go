package shared

import (
	"os"
	"strconv"
	"testing"

	"hermes-exec/runner/internal/isolation"
	"hermes-exec/runner/internal/users"
)

// The work of a reset does not grow with what neighbours have.
func TestASweepLooksAtNoMoreThanItMay(t *testing.T) {
	ids := users.NewAllocator(isolation.Facts{IDs: isolation.IDRange{First: 100_000, Count: 1000}})
	uid, err := ids.Allocate()
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	for i := range 100 {
		if err := os.Mkdir(directory+"/"+strconv.Itoa(i), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(directory+"/"+strconv.Itoa(i), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, looks := range []int{10, 0} {
		s := sweep{ids: ids, holder: Holder{UID: uid, GID: uid, Own: true}, looks: looks}
		s.run([]string{directory})
		if want := map[int]int{10: 10, 0: 100}[looks]; s.looked != want || s.incomplete != (looks > 0) {
			t.Errorf("%d: it looked at %d, left %v", looks, s.looked, s.incomplete)
		}
	}
}
