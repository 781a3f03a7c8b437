package agent

import "testing"

// What a tenant calls its processes, and how it limits them, stands in these.
func FuzzProc(f *testing.F) {
	f.Add([]byte("12 (a) b) S 1 12 12 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 1 0 99 4096 7 18446744073709551615 0"))
	f.Add([]byte("Name:\tx\nUid:\t0\t1\t2\t3\nGroups:\t4 5 \n"))
	f.Add([]byte("12 ("))
	f.Add([]byte(") 12"))
	f.Fuzz(func(t *testing.T, input []byte) {
		_, _ = parseStat(input)
		var p proc
		_ = p.parseStatus(input)
		_, _ = tokenIn(input, "boot.slot")
	})
}
