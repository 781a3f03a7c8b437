package channel

import "testing"

func TestIDsWithGapsAsWideAsNumbersGoAreRememberedInBoundedTimeAndMemory(t *testing.T) {
	var seen seenIDs
	const last = 10 * maxGaps
	for n := uint64(1); n <= last; n++ {
		seen.add(n << 40)
	}
	if len(seen.above) > maxGaps {
		t.Fatalf("%d ids are kept one by one", len(seen.above))
	}
	for n := uint64(1); n <= last; n++ {
		if !seen.has(n << 40) {
			t.Fatalf("%d was forgotten", n)
		}
	}
	if seen.has(last<<40 + 1) {
		t.Fatal("an id that never came")
	}
}
