package children

import "math"

// OnChange returns a channel that is closed when the next process ends.
func (t *Table) OnChange() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Leaders maps the pids of all commands to their tokens. forking is the start of the oldest fork
// that is not entered yet, in clock ticks. The number of a session or group is not reused as long
// as it has members.
func (t *Table) Leaders() (leaders map[int]uint64, forking uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	leaders, forking = make(map[int]uint64, len(t.byToken)), math.MaxUint64
	for _, token := range t.tokens {
		if c := t.byToken[token]; c != nil {
			leaders[c.PID] = token
		}
	}
	for _, began := range t.inflight {
		forking = min(forking, began)
	}
	return leaders, forking
}

// Newest returns the youngest command whose token leaves rest when divided by count and that is not
// younger than a process that started at start.
func (t *Table) Newest(rest, count, start uint64) (uint64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.byToken[rest]; c != nil && len(t.tokens) > 0 && t.tokens[len(t.tokens)-1] < count {
		return rest, true
	}
	best, ok := uint64(0), false
	for token, c := range t.byToken {
		if token%count == rest && c.Start <= start && (!ok || token > best) {
			best, ok = token, true
		}
	}
	if !ok {
		return rest, true
	}
	return best, true
}
