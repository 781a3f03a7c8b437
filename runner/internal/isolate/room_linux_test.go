package isolate

import (
	"os"
	"testing"
)

func TestParsePaging(t *testing.T) {
	page := int64(os.Getpagesize())
	const version1 = "workingset_refault_file 1\npgmajfault 2\ninactive_file 3\nactive_file 4\n" +
		"total_workingset_refault_file 10\ntotal_pgmajfault 20\ntotal_inactive_file 30\ntotal_active_file 40\n"
	const version2 = "anon 1\nactive_file 4\ninactive_file 3\npgmajfault 2\nworkingset_refault_anon 9\nworkingset_refault_file 5\n"
	const older = "active_file 4\ninactive_file 3\npgmajfault 2\nworkingset_refault 6\n"
	for stat, want := range map[string]Paging{
		version1: {Cache: 70, Refaults: 10 * page, Faults: 20},
		version2: {Cache: 7, Refaults: 5 * page, Faults: 2},
		older:    {Cache: 7, Refaults: 6 * page, Faults: 2},
	} {
		if got, ok := parsePaging(stat); !ok || got != want {
			t.Errorf("%+v %v, not %+v", got, ok, want)
		}
	}
	for _, bad := range []string{"", "active_file 4\n", "workingset_refault_file\n", "workingset_refault_file x\n"} {
		if got, ok := parsePaging(bad); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	var none *Room
	if _, ok := none.Paging(); ok {
		t.Error("no room has a paging")
	}
}
