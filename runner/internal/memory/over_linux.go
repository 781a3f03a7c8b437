package memory

import "hermes-exec/runner/internal/proc"

// LargestOverLimit returns the largest of these processes if all of them together have more than
// limit bytes of memory of their own.
func LargestOverLimit(limit int64, processes map[int]proc.Process) (largest proc.Process, over bool) {
	var total, most int64
	for _, p := range processes {
		own := proc.OwnMemory(p.PID)
		total += own
		if own > most {
			most, largest = own, p
		}
	}
	return largest, total > limit && most > 0
}
